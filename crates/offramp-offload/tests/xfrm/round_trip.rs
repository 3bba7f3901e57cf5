//! A rendered state is parsed to the same state, and errors for a damaged text reveal no key.

use crate::render::{FORMS, Form, Known, expected, hex, known, render};
use offramp_offload::esp::xfrm::{Owner, XfrmConfig};
use proptest::prelude::*;

/// Renders two states in a row, with or without another statement between them.
fn two(first: &Known, second: &Known, form: Form) -> String {
    let between = if form == Form::Command { "# a remark\nip link set lo up; ip xfrm policy flush\n" } else { "" };
    [render(first, form), between.to_owned(), render(second, form)].concat()
}

proptest! {
    #[test]
    fn a_state_that_is_rendered_in_any_form_is_read_again(first in known(), second in known()) {
        for form in FORMS {
            let text = two(&first, &second, form);
            let mut states = XfrmConfig::parse(&text).map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?.states;
            for state in &mut states { state.line = 1; }
            prop_assert_eq!(states, [expected(&first, form), expected(&second, form)], "{}", text);
        }
    }

    #[test]
    fn no_error_has_a_piece_of_a_key_in_it(
        known in known(),
        form in 0..FORMS.len(),
        cuts in proptest::collection::vec((any::<prop::sample::Index>(), 0..6_usize), 1..4),
    ) {
        let mut text = render(&known, FORMS[form]);
        for (index, kind) in cuts {
            text = spoil(&text, index, kind);
        }
        let said = match XfrmConfig::parse(&text) {
            Ok(config) => match config.associations(Owner::Peer, true) {
                Ok(associations) => format!("{config:?}{associations:?}"),
                Err(error) => format!("{error} {error:?}{config:?}"),
            },
            Err(error) => format!("{error} {error:?}"),
        };
        for key in [&known.encryption_key, &known.integrity_key] {
            let digits = hex(key);
            for piece in digits.as_bytes()[2..].windows(12).map(|piece| std::str::from_utf8(piece).unwrap()) {
                prop_assert!(!said.contains(piece), "{piece}\n{said}\n{text}");
            }
        }
    }
}

/// Damages a text: removes, duplicates or splits a word, moves a word to the end or the front, or inserts an end of
/// line.
fn spoil(text: &str, index: prop::sample::Index, kind: usize) -> String {
    let words: Vec<&str> = text.split_inclusive([' ', '\n', '\t']).collect();
    if words.is_empty() {
        return String::new();
    }
    let at = index.index(words.len());
    let (before, word, after) = (words[..at].concat(), words[at], words[at + 1..].concat());
    let middle = (0..=word.len() / 2).rev().find(|&at| word.is_char_boundary(at)).unwrap_or(0);
    match kind {
        0 => before + &after,
        1 => before + word + word + &after,
        2 => before + &after + " " + word,
        3 => [word, " ", &before, &after].concat(),
        4 => [&before, &word[..middle], "\n", &word[middle..], &after].concat(),
        _ => [&before, "\n", word, &after].concat(),
    }
}
