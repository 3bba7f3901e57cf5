//! Messages for unknown words, with the nearest known word.

use offramp_offload::names::nearest;

/// Returns the message "unknown WHAT NAME", with the nearest known word if one is near, and a list of all known words.
pub fn unknown<'a>(what: &str, name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    unknown_near(what, name, nearest(name, known.iter().copied()), &known)
}

/// Returns the message of [`unknown`], with a given nearest word.
pub fn unknown_near(what: &str, name: &str, meant: Option<&str>, known: &[&str]) -> String {
    match (meant, known) {
        (Some(meant), _) => {
            format!("unknown {what} \"{name}\"; did you mean \"{meant}\"? There are: {}", known.join(", "))
        }
        (None, []) => format!("unknown {what} \"{name}\"; there is none"),
        (None, _) => format!("unknown {what} \"{name}\"; there are: {}", known.join(", ")),
    }
}
