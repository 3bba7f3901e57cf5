//! An unknown word, and the known one that was probably meant.

/// "unknown WHAT NAME; did you mean …?", and all that are known.
pub fn unknown<'a>(what: &str, name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    match nearest(name, known.iter().copied()) {
        Some(meant) => {
            format!("unknown {what} \"{name}\"; did you mean \"{meant}\"? There are: {}", known.join(", "))
        }
        None => format!("unknown {what} \"{name}\"; there is none"),
    }
}

/// The known name that the fewest changes of letters lead to.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known.min_by_key(|candidate| strsim::damerau_levenshtein(name, candidate))
}
