//! Tests of a frontend's shared memory: permitted files, removal, and the effect on other guests.

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use crate::vhost_common::refuse::{refuse_anonymous_memory_in_place_of_other, refuse_munmap};
use crate::vhost_common::{Case, PATIENCE, Rig, RigConfig, carry, frame, rng, wait_until};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use offramp_testkit::features::protocol;
use offramp_testkit::frontend::{DirtyLog, Inflight, MemRegion};
use offramp_testkit::process::is_alone;
use offramp_testkit::{Buffer, Frontend, GuestMemory, HugePages, PeerError, RegionSpec, VnetHeader};

/// Returns the number of mappings of shared memory in this process, by the guest and by the port.
fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:offramp-")).count()
}

fn file_in_memory(len: u64) -> OwnedFd {
    let file = memfd_create("test", MFdFlags::MFD_CLOEXEC).unwrap();
    nix::unistd::ftruncate(&file, len as i64).unwrap();
    file
}

#[test]
fn memory_on_huge_pages_carries_frames_and_is_unmapped_whatever_its_length() {
    const GUESTS: usize = 40;
    if !is_alone("vhost_memory::memory_on_huge_pages_carries_frames_and_is_unmapped_whatever_its_length") {
        return;
    }
    let Some(pages) = HugePages::reserve(8).map(Arc::new) else { return };
    let case = Case::layouts().next().expect("a kind of ring");
    let rig = Rig::with(&RigConfig::mtu(1500));
    let mut b = rig.guest(1, &case.guest());
    b.rx(0).fill(64, 1526);
    let (own, frame) = (mappings(), frame(&mut rng(), 100));
    // The first region is shorter than a huge page (2 MiB), the second has one and a half huge pages, and the third
    // lies across the border of two huge pages.
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
    // Unmapping the memory of a large guest takes seconds. Other guests on the same thread would wait.
    if !is_alone("vhost_memory::the_thread_of_the_frames_unmaps_nothing") {
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
        // Choose a size that is not a multiple of either page size.
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
    // The device replaces lost memory by zeros. In this test, the kernel refuses replacements of 1 MiB or more.
    if !is_alone("vhost_memory::a_lost_memory_for_which_no_zeros_can_be_had_ends_its_frontend_alone") {
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
        // Headers and frames cross a page border.
        for _ in 0..8 {
            let buffer = memory.alloc_in(1, 16 << 10, 4096);
            let chain = [Buffer::readable(buffer + 4090, 12), Buffer::readable(buffer + 12_000, 1000)];
            a.tx(0).ring().add(&chain, &[]).unwrap();
        }
        memory.shrink(1, 0);
        a.tx(0).publish();
        assert!(a.frontend().is_closed_within(PATIENCE), "{guest:?}");
        // The other port must be unaffected, and the next guest must be served. Frames from the lost guest may arrive
        // first.
        let mut a = rig.guest(0, &case.guest());
        let frame = frame(&mut rng(), 60);
        a.tx(0).send(&VnetHeader::default(), &[&frame]);
        while b.rx(0).recv(PATIENCE).frame != frame {}
    }
    assert_eq!(rig.ports[0].channel_counters().lost_memories.get(), 1 + u64::from(on_huge_pages.is_some()));
}

#[test]
fn a_file_on_a_disk_is_no_memory() {
    // A file on the frontend's own file system (FUSE) could block the device in a page fault indefinitely.
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
    // The same regions in a memory file are accepted.
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

/// Returns region lengths for a guest with the maximum number of regions. Together, the regions use nearly all
/// remaining addresses of this process.
fn regions_of_all_addresses() -> Vec<u64> {
    const REGIONS: usize = 32;
    let map = |len: u64| {
        let (len, flags) = (NonZeroUsize::new(len as usize).unwrap(), MapFlags::MAP_NORESERVE | MapFlags::MAP_PRIVATE);
        // SAFETY: a new mapping at an address chosen by the kernel affects no memory in use.
        unsafe { mmap_anonymous(None, len, ProtFlags::PROT_NONE, flags) }.ok()
    };
    let mut taken = Vec::new();
    let mut len = 1 << 46;
    while taken.len() < REGIONS {
        match map(len) {
            Some(at) => taken.push((at, len)),
            None => len /= 2,
        }
    }
    for (at, len) in &taken {
        // SAFETY: the range was mapped above, and no other code uses it.
        unsafe { munmap(*at, *len as usize) }.unwrap();
    }
    taken.into_iter().map(|(_, len)| len).collect()
}

#[test]
fn a_frontend_that_takes_all_addresses_is_refused_and_no_other_notices() {
    if !is_alone("vhost_memory::a_frontend_that_takes_all_addresses_is_refused_and_no_other_notices") {
        return;
    }
    let case = Case::layouts().next().expect("a kind of ring");
    let rig = Rig::with(&RigConfig::mtu(1500));
    let mut b = rig.guest(1, &case.guest());
    b.rx(0).fill(8, 1526);
    let mut frontend = Frontend::connect(rig.socket(0));
    let lens = regions_of_all_addresses();
    let starts = lens.iter().scan(0, |next, len| {
        *next += len;
        Some(*next - len)
    });
    let regions: Vec<MemRegion> = std::iter::zip(starts, &lens)
        .map(|(start, &len)| MemRegion { guest_addr: start, len, user_addr: start, file_offset: 0 })
        .collect();
    let sparse = file_in_memory(lens[0]);
    let fds = vec![sparse.as_fd(); regions.len()];
    let protocols = frontend.get_protocol_features().unwrap();
    frontend.set_protocol_features(protocols).unwrap();
    let answer = frontend.set_mem_regions(&regions, &fds);
    // The remaining addresses must suffice for another guest with 512 MiB of memory.
    let victim = case.guest().memory(&[RegionSpec::new(0x4000_0000, 512 << 20)]);
    let place = file_in_memory(512 << 20);
    let len = NonZeroUsize::new(512 << 20).unwrap();
    // SAFETY: a new mapping at an address chosen by the kernel affects no memory in use.
    let mapped = unsafe { mmap(None, len, ProtFlags::PROT_READ, MapFlags::MAP_SHARED, &place, 0) };
    assert!(
        mapped.is_ok(),
        "{answer:?} to {} bytes leaves no place for another guest: {mapped:?}",
        lens.iter().sum::<u64>()
    );
    assert!(matches!(answer, Err(PeerError::Refused { .. })), "{answer:?}");
    assert!(frontend.is_closed_within(PATIENCE));
    let why = rig.ports[0].status().last_refusal.unwrap_or_default();
    assert!(why.contains("no more than 1099511627776"), "{why}");
    let mut a = rig.guest(0, &victim);
    carry(&mut a, &mut b, 0, &frame(&mut rng(), 100), &"beside a frontend that takes all addresses");
}

#[test]
fn what_a_frontend_has_mapped_is_as_long_as_it_has_use_for() {
    const MAX: u64 = 64 << 20;
    let rig = Rig::with(&RigConfig { memory_bytes_max: MAX, ..RigConfig::mtu(1500) });
    let file = file_in_memory(1 << 46);
    let connect = || {
        let mut frontend = Frontend::connect(rig.socket(0));
        frontend.get_features().unwrap();
        let protocols = frontend.get_protocol_features().unwrap();
        frontend.set_protocol_features(protocols).unwrap();
        frontend
    };
    let region = |guest_addr, len| MemRegion { guest_addr, len, user_addr: guest_addr, file_offset: 1 << 45 };
    let refused = |answer: Result<(), PeerError>, why: &str| {
        assert!(answer.is_err(), "{why}");
        wait_until("the end of the connection", || !rig.ports[0].status().is_connected);
        let last = rig.ports[0].status().last_refusal.unwrap_or_default();
        assert!(last.contains(why), "{last}");
    };
    // Check the memory limit for a whole table, and region by region. A repeated region is mapped once.
    refused(connect().set_mem_regions(&[region(0, MAX + 1)], &[file.as_fd()]), "no more than 67108864");
    let frontend = connect();
    frontend.set_mem_regions(&[region(0, MAX - 4096)], &[file.as_fd()]).unwrap();
    for _ in 0..2 {
        frontend.add_mem_reg(region(1 << 40, 4096), file.as_fd()).unwrap();
    }
    refused(frontend.add_mem_reg(region(1 << 41, 1), file.as_fd()), "67108865 bytes in all regions");
    // Check the limit of the log, for all permitted memory and for higher addresses. 64 MiB of memory need 2 KiB of
    // log, and 2 TiB need 64 MiB.
    let log = |frontend: &Frontend, len: u64| frontend.set_log_at(len, 0, file.as_fd());
    let frontend = connect();
    log(&frontend, 2048 + 8192).unwrap();
    refused(log(&frontend, 2048 + 8193), "dirty log: 10241 bytes");
    let frontend = connect();
    frontend.set_mem_regions(&[region((1 << 41) - 4096, 4096)], &[file.as_fd()]).unwrap();
    log(&frontend, (64 << 20) + 8192).unwrap();
    refused(log(&frontend, (64 << 20) + 8193), "dirty log");
    // Addresses beyond the range of every processor do not permit a longer log.
    let frontend = connect();
    frontend.set_mem_regions(&[region(u64::MAX - 4096, 4096)], &[file.as_fd()]).unwrap();
    refused(log(&frontend, 1 << 38), "dirty log");
    // Check the limit of the inflight region, for two rings of 32768 descriptors.
    let len = 2 * (32 + 32_768 * 32 + 32);
    let inflight = |mmap_size| Inflight {
        mmap_size,
        mmap_offset: 0,
        num_queues: 2,
        queue_size: 256,
        file: file.try_clone().unwrap(),
    };
    connect().set_inflight_fd(&inflight(len)).unwrap();
    refused(connect().set_inflight_fd(&inflight(len + 64)), "inflight region");
}

#[test]
fn memory_takes_no_descriptors_once_it_is_mapped() {
    const REGIONS: u64 = 32;
    if !is_alone("vhost_memory::memory_takes_no_descriptors_once_it_is_mapped") {
        return;
    }
    let rig = Rig::with(&RigConfig::mtu(1500));
    let mut frontend = Frontend::connect(rig.socket(0));
    let protocols = frontend.get_protocol_features().unwrap();
    frontend.set_protocol_features(protocols).unwrap();
    let file = file_in_memory(1 << 20);
    let region = |nth: u64| MemRegion { guest_addr: nth << 20, len: 1 << 20, user_addr: nth << 20, file_offset: 0 };
    let regions: Vec<_> = (0..REGIONS).map(region).collect();
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    // The first mapping in a process creates an additional descriptor, which stays open.
    frontend.set_mem_regions(&regions[..1], &[file.as_fd()]).unwrap();
    let before = descriptors();
    frontend.set_mem_regions(&regions, &vec![file.as_fd(); regions.len()]).unwrap();
    frontend.set_log_at(1 << 20, 0, file.as_fd()).unwrap();
    assert_eq!(rig.ports[0].status().memory_regions, 32);
    assert_eq!(descriptors(), before);
}
