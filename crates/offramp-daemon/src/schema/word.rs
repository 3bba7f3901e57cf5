//! An unknown word, and the known one probably meant.

/// Returns "unknown WHAT NAME; did you mean …?", and all known ones.
pub fn unknown<'a>(what: &str, name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    match nearest(name, known.iter().copied()) {
        Some(meant) => {
            format!("unknown {what} \"{name}\"; did you mean \"{meant}\"? There are: {}", known.join(", "))
        }
        None => format!("unknown {what} \"{name}\"; there is none"),
    }
}

/// Returns the known name at the smallest edit distance.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known.min_by_key(|candidate| strsim::damerau_levenshtein(name, candidate))
}
