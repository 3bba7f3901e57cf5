//! Compares a bucket with the definition of a token bucket, for every sequence of a few requests. Between any two
//! moments, frames use at most a full bucket plus the tokens that arrive between the two moments.

use super::*;

/// Number of requests in a sequence.
const REQUESTS: usize = 3;

/// A model of a bucket that computes the bucket's level from all grants and their times.
#[derive(Clone, Debug)]
struct Slow {
    per_second: i128,
    burst: i128,
    given: Vec<(u64, i128)>,
}

impl Slow {
    /// Returns the level at `now_ns`, in parts: the minimum over all starting moments. The level is negative while
    /// earlier grants are being paid for.
    fn level(&self, now_ns: u64) -> i128 {
        let starts = self.given.iter().map(|(at_ns, _)| *at_ns).chain([0, now_ns]);
        let left_since = |start_ns: u64| {
            // A grant at the starting moment counts as a grant after the starting moment.
            let given: i128 = self.given.iter().filter(|(at, _)| *at >= start_ns).map(|(_, tokens)| *tokens).sum();
            self.burst * PARTS_PER_TOKEN + self.per_second * i128::from(now_ns - start_ns) - given * PARTS_PER_TOKEN
        };
        starts.map(left_since).min().unwrap_or(self.burst * PARTS_PER_TOKEN)
    }
}

/// A request to a bucket.
#[derive(Clone, Copy, Debug)]
enum Request {
    Take(u64),
    Reserve(u64, u64),
}

fn every_history(fast: &TokenBucket, slow: &Slow, now_ns: u64, requests: usize) {
    let second = PARTS_PER_TOKEN as u64;
    let token_ns = second / slow.per_second as u64;
    let asked =
        [1, 2, 3].map(Request::Take).into_iter().chain([(0, 1), (1, 2), (3, 1)].map(|(s, w)| Request::Reserve(s, w)));
    let gaps = [0, 1, token_ns - 1, token_ns, token_ns + 1, 3 * token_ns];
    for (request, gap) in asked.flat_map(|request| gaps.map(|gap| (request, gap))) {
        let now_ns = now_ns + gap;
        let (mut fast, mut slow) = (TokenBucket { ..*fast }, slow.clone());
        let level = slow.level(now_ns);
        let what = || format!("{request:?} at {now_ns} after {slow:?}");
        match request {
            Request::Take(tokens) => {
                let is_there = i128::from(tokens) * PARTS_PER_TOKEN <= level;
                assert_eq!(fast.take(tokens, now_ns), is_there, "{}", what());
                slow.given.push((now_ns, if is_there { tokens.into() } else { 0 }));
            }
            Request::Reserve(spent, wanted) => {
                let left = level - i128::from(spent) * PARTS_PER_TOKEN;
                let tokens = if left >= PARTS_PER_TOKEN {
                    i128::from(wanted).min(left / PARTS_PER_TOKEN)
                } else {
                    wanted.into()
                };
                let missing = (tokens * PARTS_PER_TOKEN - left).max(0);
                let wait_ns = (missing + slow.per_second - 1) / slow.per_second;
                let expected = (tokens as u64, now_ns + wait_ns as u64);
                assert_eq!(fast.reserve(spent, wanted, now_ns), expected, "{}", what());
                slow.given.push((now_ns, i128::from(spent) + tokens));
            }
        }
        if requests > 1 {
            every_history(&fast, &slow, now_ns, requests - 1);
        }
    }
}

#[test]
fn every_history_of_three_requests_gives_what_the_definition_of_a_token_bucket_gives() {
    for (per_second, burst) in
        [1, 2, 3, 1_000_000_000].into_iter().flat_map(|rate| [1, 2, 3].map(|burst| (rate, burst)))
    {
        let slow = Slow { per_second, burst, given: vec![] };
        every_history(&TokenBucket::new(per_second as u64, burst as u64), &slow, 0, REQUESTS);
    }
}
