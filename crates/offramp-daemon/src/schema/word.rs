//! Messages for unknown words, with the nearest known word.

/// Returns the message "unknown WHAT NAME; did you mean …?", with a list of all known words.
pub fn unknown<'a>(what: &str, name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    match nearest(name, known.iter().copied()) {
        Some(meant) => {
            format!("unknown {what} \"{name}\"; did you mean \"{meant}\"? There are: {}", known.join(", "))
        }
        None => format!("unknown {what} \"{name}\"; there is none"),
    }
}

/// Returns the known word with the smallest edit distance from `name`.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known.min_by_key(|candidate| strsim::damerau_levenshtein(name, candidate))
}
