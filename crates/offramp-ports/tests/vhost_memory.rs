//! Which memory a frontend may share, what becomes of it when it goes, and what it costs others.

mod vhost_common;

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use offramp_testkit::features::protocol;
use offramp_testkit::frontend::{DirtyLog, Inflight, MemRegion};
use offramp_testkit::process::is_alone;
use offramp_testkit::{Buffer, Frontend, GuestMemory, HugePages, PeerError, RegionSpec, VnetHeader};
use vhost_common::refuse::{refuse_anonymous_memory_in_place_of_other, refuse_munmap};
use vhost_common::{Case, PATIENCE, Rig, RigConfig, carry, frame, rng, wait_until};

/// How often memory that is shared is mapped in this process: by its guest, and by the port.
fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:offramp-")).count()
}

#[test]
fn memory_on_huge_pages_carries_frames_and_is_unmapped_whatever_its_length() {
    const GUESTS: usize = 40;
    if !is_alone("memory_on_huge_pages_carries_frames_and_is_unmapped_whatever_its_length") {
        return;
    }
    let Some(pages) = HugePages::reserve(8).map(Arc::new) else { return };
    let case = Case::layouts().next().expect("a kind of ring");
    let rig = Rig::with(&RigConfig::mtu(1500));
    let mut b = rig.guest(1, &case.guest());
    b.rx(0).fill(64, 1526);
    let (own, frame) = (mappings(), frame(&mut rng(), 100));
    // Less than a page, a page and a part, from the middle of one page into the next.
    for (len, file_offset) in [(1 << 20, 0), (3 << 20, 0), (1 << 20, (2 << 20) - 4096)] {
        let spec = RegionSpec { guest_addr: 0x4000_0000, len, file_offset };
        for _ in 0..GUESTS {
            let mut a = rig.guest(0, &case.guest().memory(&[spec]).huge_pages(&pages));
            carry(&mut a, &mut b, 0, &frame, &spec);
            b.rx(0).fill(1, 1526);
        }
        wait_until("the end of the last", || !rig.ports[0].status().is_connected);
        assert_eq!(mappings(), own, "{spec:x?}");
    }
}

#[test]
fn the_thread_of_the_frames_unmaps_nothing() {
    // Unmapping takes seconds for a large guest, in which others of the same thread would wait.
    if !is_alone("the_thread_of_the_frames_unmaps_nothing") {
        return;
    }
    for case in Case::layouts() {
        let config = RigConfig { confine_workers: refuse_munmap, ..RigConfig::mtu(1500) };
        let rig = Rig::with(&config);
        let protocol = protocol::REPLY_ACK | protocol::LOG_SHMFD | protocol::CONFIGURE_MEM_SLOTS;
        let guest = case.guest().protocol_features(protocol);
        let mut b = rig.guest(1, &case.guest());
        b.rx(0).fill(64, 1526);
        let (own, frame) = (mappings(), frame(&mut rng(), 100));
        for (guest, has_inflight) in [(guest.clone(), false), (guest.inflight(), true)] {
            let mut a = rig.guest(0, &guest);
            a.rx(0).fill(8, 1526);
            let (memory, more) = (a.memory().clone(), GuestMemory::new(&[RegionSpec::new(1 << 40, 1 << 20)]));
            let logs = [0; 2].map(|_| DirtyLog::new(&memory));
            for log in logs.iter().chain(&logs) {
                a.frontend().set_log_base(log).unwrap();
                if has_inflight {
                    let inflight = a.frontend().get_inflight_fd(2, 256).unwrap();
                    a.frontend().set_inflight_fd(&inflight).unwrap();
                }
                a.frontend().set_mem_table(&memory).unwrap();
                carry(&mut a, &mut b, 0, &frame, &case);
                let region = MemRegion::new(&more.regions()[0]);
                a.frontend().add_mem_reg(region, more.regions()[0].fd()).unwrap();
                a.frontend().rem_mem_reg(region).unwrap();
                carry(&mut b, &mut a, 0, &frame, &case);
            }
            drop((a, memory, more, logs));
            wait_until("the end of the guest", || !rig.ports[0].status().is_connected);
            assert_eq!(mappings(), own, "{case:?}: {guest:?}");
        }
        assert!(rig.is_running(), "{case:?}");
    }
}

#[test]
fn an_inflight_region_that_is_taken_away_ends_its_frontend_alone() {
    let case = Case::layouts().find(|case| case.packed).expect("a packed ring");
    let ordinary = memfd_create("inflight", MFdFlags::MFD_CLOEXEC).unwrap();
    let pages = HugePages::reserve(1);
    let huge = pages.as_ref().map(|pages| {
        let file = memfd_create("inflight", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_HUGETLB).unwrap();
        (file, pages.page_len())
    });
    let rig = Rig::with(&RigConfig::mtu(1500));
    let mut b = rig.guest(1, &case.guest());
    b.rx(0).fill(8, 1526);
    for (nth, (file, page_len)) in [(ordinary, 4096)].into_iter().chain(huge).enumerate() {
        let mut a = rig.guest(0, &case.guest().inflight());
        let bases = a.stop().unwrap();
        // No multiple of a page of either kind.
        let mmap_size: u64 = 2 * 8232;
        nix::unistd::ftruncate(&file, mmap_size.next_multiple_of(page_len) as i64).unwrap();
        let inflight = Inflight { mmap_size, mmap_offset: 0, num_queues: 2, queue_size: 256, file };
        a.frontend().set_inflight_fd(&inflight).unwrap();
        a.start_at(&bases).unwrap();
        nix::unistd::ftruncate(&inflight.file, 0).unwrap();
        a.tx(0).send(&VnetHeader::default(), &[&[0xff; 60]]);
        assert!(a.frontend().is_closed_within(PATIENCE), "pages of {page_len}");
        assert_eq!(rig.ports[0].channel_counters().lost_memories.get(), nth as u64 + 1);
    }
    assert!(rig.is_running());
}

#[test]
fn a_lost_memory_for_which_no_zeros_can_be_had_ends_its_frontend_alone() {
    // The device puts zeros in the place of what is lost, and may get them for no more than a page at a time.
    if !is_alone("a_lost_memory_for_which_no_zeros_can_be_had_ends_its_frontend_alone") {
        return;
    }
    let huge = HugePages::reserve(8).map(Arc::new);
    refuse_anonymous_memory_in_place_of_other(1 << 20);
    let case = Case::layouts().next().expect("a kind of ring");
    let rig = Rig::with(&RigConfig::mtu(1500));
    let mut b = rig.guest(1, &case.guest());
    let regions = [RegionSpec::new(0x10_0000, 1 << 20), RegionSpec::new(0x4000_0000, (4 << 20) - 4096)];
    let ordinary = case.guest().memory(&regions);
    let on_huge_pages = huge.map(|pages| ordinary.clone().huge_pages(&pages));
    for guest in [ordinary].iter().chain(&on_huge_pages) {
        let mut a = rig.guest(0, guest);
        let memory = a.memory().clone();
        b.rx(0).fill(64, 1526);
        // Headers and frames that lie on two pages each.
        for _ in 0..8 {
            let buffer = memory.alloc_in(1, 16 << 10, 4096);
            let chain = [Buffer::readable(buffer + 4090, 12), Buffer::readable(buffer + 12_000, 1000)];
            a.tx(0).ring().add(&chain, &[]).unwrap();
        }
        memory.shrink(1, 0);
        a.tx(0).publish();
        assert!(a.frontend().is_closed_within(PATIENCE), "{guest:?}");
        // The other port never noticed, and the next guest is served. What the lost one sent may arrive before.
        let mut a = rig.guest(0, &case.guest());
        let frame = frame(&mut rng(), 60);
        a.tx(0).send(&VnetHeader::default(), &[&frame]);
        while b.rx(0).recv(PATIENCE).frame != frame {}
    }
    assert_eq!(rig.ports[0].channel_counters().lost_memories.get(), 1 + u64::from(on_huge_pages.is_some()));
}

#[test]
fn a_file_on_a_disk_is_no_memory() {
    // One on a file system of the frontend's own (FUSE) could hold the device in a page fault for as long as it likes.
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("memory-{}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(fstatfs(&file).unwrap().filesystem_type() != TMPFS_MAGIC, "this test needs a target directory on a disk");
    file.set_len(1 << 20).unwrap();
    let rig = Rig::with(&RigConfig::mtu(1500));
    let connect = || {
        let mut frontend = Frontend::connect(rig.socket(0));
        frontend.get_features().unwrap();
        let protocols = frontend.get_protocol_features().unwrap();
        frontend.set_protocol_features(protocols).unwrap();
        assert!(protocols & protocol::LOG_SHMFD != 0);
        frontend
    };
    let region = MemRegion { guest_addr: 0, len: 1 << 20, user_addr: 1 << 32, file_offset: 0 };
    let is_refused = |answer: Result<(), PeerError>| matches!(answer, Err(PeerError::Refused { .. }));
    assert!(is_refused(connect().set_mem_regions(&[region], &[file.as_fd()])));
    assert!(is_refused(connect().add_mem_reg(region, file.as_fd())));
    let inflight = |file| Inflight { mmap_size: 1 << 20, mmap_offset: 0, num_queues: 2, queue_size: 256, file };
    assert!(is_refused(connect().set_inflight_fd(&inflight(file.try_clone().unwrap().into()))));
    let why = rig.ports[0].status().last_refusal.unwrap_or_default();
    assert!(why.contains("tmpfs") && why.contains("hugetlbfs"), "{why}");
    // The same in a file in memory is taken.
    let memory = memfd_create("memory", MFdFlags::MFD_CLOEXEC).unwrap();
    nix::unistd::ftruncate(&memory, 1 << 20).unwrap();
    let named = Path::new("/dev/shm").join(format!("offramp-memory-{}", std::process::id()));
    let shm = File::options().read(true).write(true).create_new(true).open(&named).unwrap();
    std::fs::remove_file(&named).unwrap();
    shm.set_len(1 << 20).unwrap();
    for good in [memory.as_fd(), shm.as_fd()] {
        assert_eq!(connect().set_mem_regions(&[region], &[good]), Ok(()));
    }
}
