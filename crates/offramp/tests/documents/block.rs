//! Blocks of a document that a test runs, and the comparison of their output with the document.

/// The contents of a block. The word `runnable` after the language of a fence marks the block.
#[derive(Debug, PartialEq, Eq)]
pub enum Kind {
    /// Lines of a shell (`sh runnable`), or one command after `$ ` (`console runnable`).
    Commands(String),
    /// A file to save (`toml runnable`). The name is in its first line, `# NAME`.
    File { name: String, text: String },
}

/// A step of a reader who follows the document.
#[derive(Debug, PartialEq, Eq)]
pub struct Step {
    /// Line in the document, from 1.
    pub line: usize,
    pub kind: Kind,
    /// The output that the document shows; `None` if it shows none.
    pub shown: Option<String>,
    /// True if the numbers must be equal, too.
    pub is_exact: bool,
}

/// Returns the marked blocks of a document as steps, in order.
///
/// The output of a block `sh runnable` is the next code block, if that block is marked `text output`. In a block
/// `console runnable`, a line with `$ ` begins a command, and the command's output follows; a command with output may
/// fail. With the word `exact` after `runnable` or `output`, numbers are compared, too.
///
/// # Errors
/// Returns a message with the line of an unknown mark, of a file without a name, or of an output without a command.
pub fn steps(document: &str) -> Result<Vec<Step>, String> {
    let mut steps: Vec<Step> = Vec::new();
    let mut lines = document.lines().enumerate();
    let mut follows_commands = false;
    while let Some((index, line)) = lines.next() {
        let Some(mark) = line.strip_prefix("```") else { continue };
        let body: Vec<&str> = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").collect();
        let line = index + 1;
        let words: Vec<&str> = mark.split(' ').skip(1).collect();
        let is_exact = words.last() == Some(&"exact");
        let language = mark.split(' ').next().unwrap_or_default();
        let step = |kind| Step { line, kind, shown: None, is_exact };
        let was_commands = std::mem::take(&mut follows_commands);
        match (language, &words[..words.len() - usize::from(is_exact)]) {
            (_, []) if !is_exact => {}
            ("sh", ["runnable"]) if !is_exact => {
                steps.push(step(Kind::Commands(body.join("\n"))));
                follows_commands = true;
            }
            ("text", ["output"]) if was_commands => {
                let last = steps.last_mut().expect("commands came before");
                (last.shown, last.is_exact) = (Some(body.join("\n")), is_exact);
            }
            ("toml", ["runnable"]) if !is_exact => {
                let name = body.first().and_then(|first| first.strip_prefix("# "));
                let name = name.ok_or_else(|| format!("line {line}: the first line must be `# NAME` of the file"))?;
                steps.push(step(Kind::File { name: name.to_owned(), text: body.join("\n") + "\n" }));
            }
            ("console", ["runnable"]) => steps.extend(dialogue(line, &body, is_exact)?),
            _ => return Err(format!("line {line}: {mark:?} is no mark of a block")),
        }
    }
    Ok(steps)
}

/// Splits a terminal's text into commands and their outputs. Only a command without output must succeed.
fn dialogue(fence: usize, body: &[&str], is_exact: bool) -> Result<Vec<Step>, String> {
    let mut steps: Vec<Step> = Vec::new();
    for (index, line) in body.iter().enumerate() {
        let continued = match steps.last_mut() {
            Some(Step { kind: Kind::Commands(command), shown: None, .. }) if command.ends_with('\\') => Some(command),
            _ => None,
        };
        if let Some(command) = continued {
            *command = format!("{command}\n{line}");
        } else if let Some(command) = line.strip_prefix("$ ") {
            let kind = Kind::Commands(command.to_owned());
            steps.push(Step { line: fence + 1 + index, kind, shown: None, is_exact });
        } else {
            // The document may show the output of a failure, so only the output of such a command is compared.
            let step = steps.last_mut().ok_or_else(|| format!("line {fence}: the first line must begin with `$ `"))?;
            if let (Kind::Commands(command), None) = (&mut step.kind, &step.shown) {
                *command = format!("{command} || true");
            }
            step.shown = Some(step.shown.take().map_or_else(|| (*line).to_owned(), |shown| format!("{shown}\n{line}")));
        }
    }
    Ok(steps)
}

/// Returns true if a program printed what the document shows.
///
/// All runs of blanks count as equal, and any two numbers count as equal unless `is_exact`. A line `…` or `...` stands
/// for any lines, and `…` within a line for any text.
pub fn is_as_shown(shown: &str, printed: &str, is_exact: bool) -> bool {
    let shape = |text: &str| -> Vec<String> { text.trim_end().lines().map(|line| shape(line, is_exact)).collect() };
    lines_match(&shape(shown), &shape(printed))
}

fn lines_match(shown: &[String], printed: &[String]) -> bool {
    match shown.split_first() {
        None => printed.is_empty(),
        Some((first, rest)) if ["…", "..."].contains(&first.as_str()) => {
            (0..=printed.len()).any(|skipped| lines_match(rest, &printed[skipped..]))
        }
        Some((first, rest)) => {
            printed.split_first().is_some_and(|(line, others)| line_matches(first, line) && lines_match(rest, others))
        }
    }
}

fn line_matches(shown: &str, printed: &str) -> bool {
    let Some((start, rest)) = shown.split_once('…') else { return shown == printed };
    let Some(printed) = printed.strip_prefix(start) else { return false };
    let (middle, end) = rest.rsplit_once('…').unwrap_or(("", rest));
    let Some(mut printed) = printed.strip_suffix(end) else { return false };
    middle.split('…').all(|part| {
        let place = printed.find(part);
        printed = place.map_or("", |place| &printed[place + part.len()..]);
        place.is_some()
    })
}

/// Returns a line with single blanks, and with `N` in place of each number unless `is_exact`.
fn shape(line: &str, is_exact: bool) -> String {
    let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
    if is_exact {
        return line;
    }
    let mut shape = String::new();
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        let next_is_digit = characters.peek().is_some_and(char::is_ascii_digit);
        let is_sign = "+-".contains(character) && next_is_digit && !shape.ends_with(char::is_alphanumeric);
        if !character.is_ascii_digit() && !is_sign {
            shape.push(character);
            continue;
        }
        while let Some(next) = characters.peek().copied() {
            let mut ahead = characters.clone().skip(1);
            let is_inner = ".,".contains(next) && ahead.next().is_some_and(|after| after.is_ascii_digit());
            if !next.is_ascii_digit() && !is_inner {
                break;
            }
            characters.next();
        }
        shape.push('N');
    }
    shape
}
