//! Parallel execution of runs on the processors of this machine.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// Returns the number of processors available to this process.
pub fn threads() -> NonZeroUsize {
    thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// Calls `work` for every item, on `threads` threads. `done` runs on the calling thread after each item, in the order
/// of completion. Once `done` returns `false`, no further item begins. The results are in the order of the items. The
/// result of an item that never began is `None`.
pub fn map<T: Sync, R: Send>(
    items: &[T],
    threads: NonZeroUsize,
    work: impl Fn(&T) -> R + Sync,
    mut done: impl FnMut(usize, &R) -> bool,
) -> Vec<Option<R>> {
    let next = AtomicUsize::new(0);
    let mut results: Vec<Option<R>> = items.iter().map(|_| None).collect();
    thread::scope(|scope| {
        // The channel holds one result per thread. A thread with a short item can therefore continue while `done`
        // handles another result. Together, the threads begin at most two further items per thread before a stop takes
        // effect.
        let (sender, receiver) = mpsc::sync_channel(threads.get());
        for _ in 0..threads.get().min(items.len()) {
            let (sender, next, work) = (sender.clone(), &next, &work);
            scope.spawn(move || {
                loop {
                    // Relaxed ordering is enough: each index is used once, and no other memory depends on the index.
                    // The counter exceeds the number of items by at most one per thread.
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(at) else { return };
                    if sender.send((at, work(item))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for (at, result) in receiver {
            if !done(at, &result) {
                next.store(items.len(), Ordering::Relaxed);
            }
            results[at] = Some(result);
        }
    });
    results
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(threads: usize) -> NonZeroUsize {
        NonZeroUsize::new(threads).unwrap()
    }

    #[test]
    fn results_are_in_the_order_of_the_items_on_any_number_of_threads() {
        let items: Vec<u64> = (0..500).collect();
        for threads in [1, 2, 7] {
            let mut reported = Vec::new();
            let report = |at, _: &u64| {
                reported.push(at);
                true
            };
            let results = map(&items, count(threads), |item| item * item, report);
            let squares: Vec<_> = items.iter().map(|item| Some(item * item)).collect();
            assert_eq!(results, squares);
            reported.sort_unstable();
            assert_eq!(reported, (0..500).collect::<Vec<_>>());
        }
    }

    #[test]
    fn nothing_is_begun_after_a_stop() {
        let items = vec![(); 1000];
        let results = map(&items, count(1), |()| (), |at, ()| at < 9);
        let begun = results.iter().flatten().count();
        assert!((10..=12).contains(&begun), "{begun}");
    }

    #[test]
    fn nothing_to_do_is_done() {
        assert!(map(&[] as &[u8], count(4), |item| *item, |_, _| true).is_empty());
    }
}
