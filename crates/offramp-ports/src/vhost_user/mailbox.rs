//! Changes to the state of a queue's thread, requested by the control thread.
//!
//! A queue's thread owns its rings, and shares no state on the data path. Other threads change the rings by sending a
//! closure (a piece of work). The queue's thread runs the work between two batches, and returns the result. While no
//! work is requested, the mailbox costs the queue's thread one load of a flag per batch.

use crate::bell::Bell;
use offramp_offload::sync::atomic::{AtomicBool, Ordering};
use offramp_offload::sync::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Time limit for the answer of a queue's thread. The thread answers between two batches, or when it is woken. Without
/// overload, an answer takes longer only if no thread polls the port.
const PATIENCE: Duration = Duration::from_secs(5);

type Work<S> = Box<dyn FnOnce(&mut S) + Send>;

#[derive(Debug)]
struct Shared<S> {
    /// True while the inbox has work and the eventfd of `bell` is readable. This flag and `bell` change only while the
    /// inbox is locked, so a queue's thread always finds both in the same state. Otherwise, the eventfd could become
    /// readable after the thread has taken the work, and would wake the thread needlessly.
    has_work: AtomicBool,
    bell: Bell,
    work: Mutex<Inbox<S>>,
}

struct Inbox<S> {
    waiting: VecDeque<Work<S>>,
    is_closed: bool,
}

impl<S> std::fmt::Debug for Inbox<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox").field("waiting", &self.waiting.len()).field("is_closed", &self.is_closed).finish()
    }
}

impl<S> Shared<S> {
    /// Locks the inbox. After a panic of another thread that held the lock, at worst some requested work is not done.
    fn inbox(&self) -> MutexGuard<'_, Inbox<S>> {
        self.work.lock()
    }
}

/// No thread works on the queue: the queue was dropped, or no thread polls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nothing drives this queue")]
pub(super) struct NobodyThere;

/// The sending end of a mailbox, for requests.
#[derive(Debug)]
pub(super) struct Sender<S>(Arc<Shared<S>>);

/// The receiving end of a mailbox, owned by the queue.
#[derive(Debug)]
pub(super) struct Receiver<S>(Arc<Shared<S>>);

/// Creates a mailbox for work on `S`.
pub(super) fn mailbox<S>() -> io::Result<(Sender<S>, Receiver<S>)> {
    let shared = Arc::new(Shared {
        has_work: AtomicBool::new(false),
        bell: Bell::new()?,
        work: Mutex::new(Inbox { waiting: VecDeque::new(), is_closed: false }),
    });
    Ok((Sender(Arc::clone(&shared)), Receiver(shared)))
}

/// Requested work whose result is pending.
#[derive(Debug)]
pub(super) struct Asked<R> {
    answered: mpsc::Receiver<Option<R>>,
    is_wanted: Arc<AtomicBool>,
}

impl<R> Asked<R> {
    /// Waits for the work's result until `until`. Work that has not started at `until` is cancelled, because the work
    /// would rely on an outdated state.
    pub(super) fn wait(self, until: Instant) -> Result<R, NobodyThere> {
        let answer = self.answered.recv_timeout(until.saturating_duration_since(Instant::now()));
        answer.ok().flatten().ok_or_else(|| {
            self.is_wanted.store(false, Ordering::Release);
            NobodyThere
        })
    }
}

impl<S: 'static> Sender<S> {
    /// Runs `work` on the queue's thread, and returns its result.
    pub(super) fn run<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut S) -> R + Send + 'static,
    ) -> Result<R, NobodyThere> {
        self.begin(work)?.wait(Instant::now() + PATIENCE)
    }

    /// Requests `work` from the queue's thread. The work is cancelled when the wait for its result ends.
    pub(super) fn begin<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut S) -> R + Send + 'static,
    ) -> Result<Asked<R>, NobodyThere> {
        let is_wanted = Arc::new(AtomicBool::new(true));
        let still_wanted = Arc::clone(&is_wanted);
        let answered = self.ask(move |state| still_wanted.load(Ordering::Acquire).then(|| work(state)))?;
        Ok(Asked { answered, is_wanted })
    }

    /// Requests `work` from the queue's thread, without a time limit. Returns the receiver of the result.
    pub(super) fn ask<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut S) -> R + Send + 'static,
    ) -> Result<mpsc::Receiver<R>, NobodyThere> {
        let (answer, answered) = mpsc::sync_channel(1);
        let work: Work<S> = Box::new(move |state| {
            // The requesting thread may have stopped waiting.
            let _ = answer.send(work(state));
        });
        let mut inbox = self.0.inbox();
        if inbox.is_closed {
            return Err(NobodyThere);
        }
        inbox.waiting.push_back(work);
        self.0.has_work.store(true, Ordering::Relaxed);
        self.0.bell.ring();
        Ok(answered)
    }
}

/// Returns the result of each request in `asked`, or `None` if the request was refused or its result is late. The time
/// limit applies to all results together.
pub(super) fn wait_for_all<R>(asked: Vec<Option<Asked<R>>>) -> impl Iterator<Item = Option<R>> {
    let end = Instant::now() + PATIENCE;
    asked.into_iter().map(move |asked| asked?.wait(end).ok())
}

/// Runs `work` on every queue's thread. A thread that exceeds the time limit still runs the work later. The time limit
/// applies to all threads together.
pub(super) fn run_everywhere<S: 'static>(senders: &[Sender<S>], work: fn(&mut S)) {
    let asked: Vec<_> = senders.iter().filter_map(|sender| sender.ask(work).ok()).collect();
    let end = Instant::now() + PATIENCE;
    for answered in asked {
        // A queue that was dropped during the wait needs no work.
        let _ = answered.recv_timeout(end.saturating_duration_since(Instant::now()));
    }
}

impl<S> Receiver<S> {
    /// Returns whether work is requested.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        self.0.has_work.load(Ordering::Relaxed)
    }

    /// Runs the requested work, if any.
    #[cold]
    pub(super) fn serve(&self, state: &mut S) {
        let waiting = {
            let mut inbox = self.0.inbox();
            self.0.has_work.store(false, Ordering::Relaxed);
            // Clear the bell, because this call takes the work for which the bell rang.
            self.0.bell.clear();
            std::mem::take(&mut inbox.waiting)
        };
        for work in waiting {
            work(state);
        }
    }

    /// Returns a descriptor that is readable while work is requested.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.0.bell.as_fd()
    }
}

impl<S> Drop for Receiver<S> {
    fn drop(&mut self) {
        let mut inbox = self.0.inbox();
        inbox.is_closed = true;
        inbox.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    #[test]
    fn work_is_done_by_the_other_thread_and_answered() {
        let (sender, receiver) = mailbox::<u32>().unwrap();
        let queue = std::thread::spawn(move || {
            let mut state = 1;
            while state < 3 {
                receiver.serve(&mut state);
            }
        });
        for expected in 2..=3 {
            let got = sender.run(|state| {
                *state += 1;
                *state
            });
            assert_eq!(got, Ok(expected));
        }
        queue.join().unwrap();
        assert_eq!(sender.run(|state| *state), Err(NobodyThere));
    }

    fn is_ringing(bell: &Bell) -> bool {
        poll(&mut [PollFd::new(bell.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO) == Ok(1)
    }

    #[test]
    fn the_bell_is_silent_once_all_work_is_done() {
        const PIECES: u32 = 10_000;
        let (sender, receiver) = mailbox::<u32>().unwrap();
        let queue = std::thread::spawn(move || {
            let mut state = 0;
            while state < PIECES {
                receiver.serve(&mut state);
            }
        });
        for piece in 0..PIECES {
            sender.run(|state| *state += 1).unwrap();
            assert!(!is_ringing(&sender.0.bell), "it rings for nothing after piece {piece}");
        }
        queue.join().unwrap();
    }

    #[test]
    fn what_is_asked_for_is_done_also_when_nobody_waits_for_it() {
        let (sender, receiver) = mailbox::<u32>().unwrap();
        drop(sender.ask(|state| *state += 1).unwrap());
        let mut state = 1;
        receiver.serve(&mut state);
        assert_eq!(state, 2);
    }
}

#[cfg(all(test, feature = "loom"))]
mod every_order {
    use super::*;
    use loom::thread;

    /// Sleeps until work is requested and runs the work, repeatedly until `pieces` pieces of work are done.
    fn serve_until(receiver: &Receiver<u32>, pieces: u32) {
        let mut done = 0;
        loop {
            receiver.serve(&mut done);
            if done == pieces {
                return;
            }
            receiver.0.bell.sleep(Vec::new(), Duration::ZERO);
        }
    }

    #[test]
    fn a_queue_that_sleeps_does_all_work_and_is_woken_for_none_that_is_done() {
        loom::model(|| {
            let (sender, receiver) = mailbox::<u32>().unwrap();
            let other = Sender(Arc::clone(&sender.0));
            let queue = thread::spawn(move || {
                serve_until(&receiver, 2);
                receiver
            });
            let asking = thread::spawn(move || drop(other.ask(|done| *done += 1).unwrap()));
            drop(sender.ask(|done| *done += 1).unwrap());
            asking.join().unwrap();
            let receiver = queue.join().unwrap();
            assert!(!receiver.0.bell.is_ringing() && !receiver.0.has_work.load(Ordering::Relaxed));
        });
    }

    #[test]
    fn whoever_asks_a_queue_that_goes_is_answered_or_hears_that_it_went() {
        loom::model(|| {
            let (sender, receiver) = mailbox::<u32>().unwrap();
            let queue = thread::spawn(move || {
                let mut done = 0;
                receiver.serve(&mut done);
                drop(receiver);
                done
            });
            let asked = sender.ask(|done| *done += 1);
            let done = queue.join().unwrap();
            match asked {
                Err(NobodyThere) => assert_eq!(done, 0),
                Ok(answered) => assert_eq!(answered.try_recv().is_ok(), done == 1, "an answer that never comes"),
            }
            // Work that remains in the inbox would never complete, and its requester would wait forever.
            assert!(sender.0.inbox().waiting.is_empty());
        });
    }
}
