//! The user of this process in its user namespace (`user_namespaces(7)`).

use std::fs;

use nix::unistd::{AccessFlags, Uid, eaccess};

/// The uid of the user "nobody" on Linux systems.
const NOBODY_UID: Uid = Uid::from_raw(65_534);
/// The map of uids of this process's user namespace.
const UID_MAP: &str = "/proc/self/uid_map";

/// Returns whether the process is root of the machine, or root of a container with a user namespace. Here, a container
/// is a user namespace with the user "nobody", and with a `/run` writable by its root. Any other root in a user
/// namespace is an ordinary user (`user_namespaces(7)`).
pub fn is_root_of_system() -> bool {
    let map = fs::read_to_string(UID_MAP).unwrap_or_default();
    let is_machine = map.is_empty() || map.split_whitespace().eq(["0", "0", "4294967295"]);
    let owns_run = || eaccess("/run", AccessFlags::W_OK).is_ok();
    Uid::effective().is_root() && (is_machine || (is_user_here(NOBODY_UID) && owns_run()))
}

/// Returns whether the process can become this user. The process's user namespace may not contain the user. Root in a
/// user namespace is an ordinary user outside the namespace (`user_namespaces(7)`).
pub fn is_user_here(user: Uid) -> bool {
    let Ok(map) = fs::read_to_string(UID_MAP) else { return true };
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map_while(|number| number.parse::<u32>().ok());
        let (first, _, count) = (numbers.next(), numbers.next(), numbers.next());
        let offset = first.and_then(|first| user.as_raw().checked_sub(first));
        offset.zip(count).is_some_and(|(offset, count)| offset < count)
    })
}

/// Returns the user's uid outside the user namespace.
pub fn outer_uid(user: Uid) -> u32 {
    outer_in(user, &fs::read_to_string(UID_MAP).unwrap_or_default())
}

/// Returns the user's uid outside the user namespace. `map` is the namespace's map of uids (`user_namespaces(7)`).
/// Without a map, the uid is the same.
fn outer_in(user: Uid, map: &str) -> u32 {
    let outer = map.lines().find_map(|line| {
        let numbers: Vec<u32> = line.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        let [first, outer, count] = numbers[..] else { return None };
        let offset = user.as_raw().checked_sub(first).filter(|offset| *offset < count)?;
        outer.checked_add(offset)
    });
    outer.unwrap_or(user.as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_outside_a_namespace_is_the_mapped_one() {
        let cases = [
            (0, "0 0 4294967295\n", 0),
            (1000, "0 0 4294967295\n", 1000),
            (0, "0 1000 1\n", 1000),
            (5, "0 1000 1\n1 100000 65536\n", 100_004),
            (7, "0 1000 1\n", 7),
            (7, "", 7),
            (7, "0 4294967290 20\n", 7),
        ];
        for (user, map, outer) in cases {
            assert_eq!(outer_in(user.into(), map), outer, "{user} in {map}");
        }
    }
}
