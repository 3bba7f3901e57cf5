//! The words of a text: shell commands, and the output of `ip`.

use super::fault::{Fault, Shown, XfrmError};
use std::net::IpAddr;
use std::str::FromStr;

/// Length of the shortest key of any suite, in bytes. A key can be plain text, so a word of this length or more can be
/// a key.
const KEY_LEN_MIN: usize = 16;
/// Number of hexadecimal digits from which on messages hide a number, because the number can be part of a key.
const SHOWN_DIGITS_MAX: usize = 8;

/// The start of the replacement for a key in `ip xfrm state list nokeys`.
pub(super) const HIDDEN_KEY: &str = "<<Keys";

/// Words that can precede a key. Unknown words after such a word are not shown.
const KEY_WORDS: [&str; 5] = ["enc", "auth", "auth-trunc", "aead", "comp"];
/// Known words of `ip xfrm` that are never keys. Messages can always show these words.
const VOCABULARY: &str = "\
    action addr ah align4 beet block bypass coa code comp crypto ctx delete deleteall dev dir dport encap \
    espintcp espinudp espinudp-nonike flag fwd hao icmp if_id in_trigger ipsec-any iptfs key level limit mark \
    mask mode offload oseq-may-wrap output-mark packet pcpu-num proto required ro route2 security sel spi \
    sport sub tfcpad time-soft time-use-hard time-use-soft type uid use wildrecv xfrm";

/// Linux' algorithms for IPsec (`net/xfrm/xfrm_algo.c`), and their wrappers.
const ALGORITHMS: &str = "\
    aes blowfish camellia cast5 cast6 cbc ccm chacha20 cipher_null cmac compress_null ctr deflate des \
    des3_ede digest_null ecb echainiv gcm hmac lzjh lzs md5 poly1305 rfc3686 rfc4106 rfc4309 rfc4543 rfc7539 \
    rfc7539esp ripemd160 rmd160 seqiv serpent sha1 sha224 sha256 sha384 sha512 sm3 twofish xcbc";

/// A word and its position in the text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word<'a> {
    /// Text of the word without quotes.
    pub text: &'a str,
    /// Line of the word, counted from 1.
    pub line: usize,
    /// True for the first word of its line.
    pub starts_line: bool,
    /// True if this word cannot be part of a key: the statement starts with an expected word, and no earlier word of
    /// the statement can precede a key.
    pub is_open: bool,
}

impl Word<'_> {
    /// Returns the word in the form for a message.
    pub(super) fn shown(&self) -> Shown {
        let is_plain = self.text.len() < KEY_LEN_MIN && self.text.chars().all(|c| c.is_ascii_graphic());
        let digits = self.text.strip_prefix("0x").unwrap_or(self.text);
        let is_number = digits.len() >= SHOWN_DIGITS_MAX && digits.bytes().all(|c| c.is_ascii_hexdigit());
        let is_address = self.prefixed().0.parse::<IpAddr>().is_ok();
        let is_safe = is_one_of(VOCABULARY, self.text)
            || is_algorithm(self.text)
            || self.is_open && (is_plain && !is_number || is_address);
        Shown(is_safe.then(|| self.text.to_owned()))
    }

    /// Splits the word at the first slash into address and prefix length.
    pub(super) fn prefixed(&self) -> (&str, Option<&str>) {
        self.text.split_once('/').map_or((self.text, None), |(address, len)| (address, Some(len)))
    }

    /// Returns the error for an unknown word.
    pub(super) fn unknown(&self, known: &'static str) -> XfrmError {
        Fault::Unknown { word: self.shown(), known }.at(self.line)
    }

    /// Returns the error for an unsupported word.
    pub(super) fn unsupported(&self, why: &'static str) -> XfrmError {
        Fault::Unsupported { word: self.shown(), why }.at(self.line)
    }
}

fn is_one_of(list: &str, word: &str) -> bool {
    list.split(' ').any(|listed| listed == word)
}

/// Returns true for the name of an algorithm, or a combination such as `rfc4106(gcm(aes))`.
fn is_algorithm(word: &str) -> bool {
    word.split(['(', ')', ',']).filter(|name| !name.is_empty()).all(|name| is_one_of(ALGORITHMS, name))
}

/// A command, or an entry of the output.
#[derive(Clone, Debug)]
pub(super) enum Statement<'a> {
    /// Words of a command.
    Command(Vec<Word<'a>>),
    /// An entry of `ip xfrm state`.
    StateOutput(Vec<Word<'a>>),
    /// An entry of `ip xfrm policy`.
    PolicyOutput(Vec<Word<'a>>),
}

/// Splits a text into commands and entries.
///
/// # Errors
/// Returns an error at unclosed quotes, and at characters with a meaning in a shell only.
pub(super) fn statements(text: &str) -> Result<Vec<Statement<'_>>, XfrmError> {
    let mut statements: Vec<Vec<Word>> = Vec::new();
    for line in lines(text)? {
        // An entry begins with `src` and ends before the next entry or command.
        let is_entry = |words: &Vec<Word>| words.first().is_some_and(|first| first.text == "src");
        let begins = line.first().is_some_and(|first| matches!(first.text, "src" | "ip" | "sudo") || is_ip(first.text));
        match statements.last_mut() {
            Some(entry) if is_entry(entry) && !begins => entry.extend(line),
            _ => statements.push(line),
        }
    }
    for words in &mut statements {
        mark_open(words);
    }
    Ok(statements.into_iter().map(kind_of).collect())
}

/// Classifies an entry by the second line of the entry. A policy's second line contains the direction or a security
/// context.
fn kind_of(words: Vec<Word>) -> Statement {
    if words.first().is_none_or(|first| first.text != "src") {
        return Statement::Command(words);
    }
    let second = words.iter().skip(1).find(|word| word.starts_line);
    match second.map(|word| word.text) {
        Some("dir" | "socket" | "security") => Statement::PolicyOutput(words),
        _ => Statement::StateOutput(words),
    }
}

fn mark_open(words: &mut [Word]) {
    // A statement with an unexpected first word can be the second part of a key that was split.
    let begins = words.first().is_some_and(|first| first.text == "src" || is_ip(first.text) || first.text == "sudo");
    let mut is_open = begins;
    for word in words {
        word.is_open = is_open;
        is_open &= !KEY_WORDS.contains(&word.text);
    }
}

/// Returns true for the program `ip`.
fn is_ip(word: &str) -> bool {
    word.rsplit('/').next() == Some("ip")
}

/// Returns the words of each line. A command continues after a backslash at the end of its line. `;` and `&&` end a
/// command. In an entry, a backslash means the end of a line (`ip -o`).
fn lines(text: &str) -> Result<Vec<Vec<Word<'_>>>, XfrmError> {
    let mut lines: Vec<Vec<Word>> = Vec::new();
    let mut words: Vec<Word> = Vec::new();
    let mut rest = text;
    let mut line = 1;
    let mut is_entry = false;
    while let Some(c) = rest.chars().next() {
        match c {
            '\n' | ';' => {
                lines.push(std::mem::take(&mut words));
                is_entry &= c == ';';
                line += usize::from(c == '\n');
                rest = &rest[1..];
            }
            '&' if rest.starts_with("&&") => {
                lines.push(std::mem::take(&mut words));
                rest = &rest[2..];
            }
            // Only a shell can run a command in the background, or end a word at `&`.
            '&' => return Err(only_a_shell(line)),
            '#' => rest = &rest[rest.find('\n').unwrap_or(rest.len())..],
            '\\' if is_entry => {
                lines.push(std::mem::take(&mut words));
                rest = &rest[1..];
            }
            '\\' => {
                rest = rest[1..].strip_prefix('\r').unwrap_or(&rest[1..]);
                rest = rest.strip_prefix('\n').ok_or_else(|| only_a_shell(line))?;
                line += 1;
            }
            c if c.is_whitespace() => rest = &rest[c.len_utf8()..],
            _ => {
                let (word, after) = split_word(rest, line)?;
                is_entry |= words.is_empty() && word == "src";
                words.push(Word { text: word, line, starts_line: words.is_empty(), is_open: false });
                rest = after;
            }
        }
    }
    lines.push(words);
    lines.retain(|words| !words.is_empty());
    Ok(lines)
}

fn only_a_shell(line: usize) -> XfrmError {
    let why = "only a shell can expand it; write the value itself, in quotes if it has brackets";
    Fault::Unsupported { word: Shown(None), why }.at(line)
}

/// Returns the first word of a text, and the remaining text. The text must begin with a word.
fn split_word(text: &str, line: usize) -> Result<(&str, &str), XfrmError> {
    const ENDS: [char; 3] = ['\\', ';', '&'];
    let missing = Fault::Missing("the other quote").at(line);
    let (word, rest) = match text.chars().next() {
        Some(quote @ ('\'' | '"')) => text[1..].split_once(quote).ok_or(missing)?,
        _ => text.split_at(text.find(|c: char| c.is_whitespace() || ENDS.contains(&c)).unwrap_or(text.len())),
    };
    let is_single = text.starts_with('\'');
    let is_whole = rest.is_empty() || rest.starts_with(|c: char| c.is_whitespace() || ENDS.contains(&c));
    if matches!(word, HIDDEN_KEY | "hidden>>") {
        return Ok((word, rest));
    }
    if !is_whole || !is_single && word.contains(['$', '`', '\'', '"', '|', '<', '>']) || word.contains('\n') {
        return Err(only_a_shell(line));
    }
    Ok((word, rest))
}

/// The object of an `ip xfrm` command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Object {
    /// The command concerns security associations.
    State,
    /// The command concerns policies.
    Policy,
}

/// The words of one statement, consumed one after another.
#[derive(Debug)]
pub(super) struct Words<'a> {
    words: &'a [Word<'a>],
    at: usize,
}

impl<'a> Words<'a> {
    pub(super) fn new(words: &'a [Word<'a>]) -> Self {
        Self { words, at: 0 }
    }

    /// Returns the line of the next word, or of the last word if no word is left.
    pub(super) fn line(&self) -> usize {
        let word = self.words.get(self.at).or(self.words.last());
        word.map_or(1, |word| word.line)
    }

    /// Returns the next word without consuming it.
    pub(super) fn peek(&self) -> Option<Word<'a>> {
        self.words.get(self.at).copied()
    }

    /// Consumes the next word and returns it.
    pub(super) fn next(&mut self) -> Option<Word<'a>> {
        let word = self.peek()?;
        self.at += 1;
        Some(word)
    }

    /// Consumes the next word if it equals `text`. Returns whether a word was consumed.
    pub(super) fn take(&mut self, text: &str) -> bool {
        let is_there = self.peek().is_some_and(|word| word.text == text);
        self.at += usize::from(is_there);
        is_there
    }

    /// Consumes the next word and returns it, or an error that names `what` if no word is left.
    pub(super) fn required(&mut self, what: &'static str) -> Result<Word<'a>, XfrmError> {
        let line = self.line();
        self.next().ok_or(Fault::Missing(what).at(line))
    }

    /// Consumes the words of `text`, which `ip` prints between values. Returns an error if the next words differ from
    /// `text`.
    pub(super) fn literal(&mut self, text: &'static str) -> Result<(), XfrmError> {
        for text in text.split(' ') {
            let word = self.required(text)?;
            if word.text != text {
                return Err(word.unknown(text));
            }
        }
        Ok(())
    }

    /// Consumes the next word, and parses it as one of `known`.
    pub(super) fn one_of<T: FromStr>(&mut self, known: &'static str) -> Result<T, XfrmError> {
        let word = self.required(known)?;
        word.text.parse().map_err(|_| word.unknown(known))
    }

    /// Returns the last consumed word to the input.
    pub(super) fn put_back(&mut self) {
        self.at -= 1;
    }

    /// Skips the remaining words of this line, and the next `more` lines.
    pub(super) fn skip_lines(&mut self, more: usize) {
        for _ in 0..=more {
            while self.peek().is_some_and(|word| !word.starts_line) {
                self.at += 1;
            }
            self.at += 1;
        }
        // The first word of the next line is not consumed.
        self.at = (self.at - 1).min(self.words.len());
    }

    /// Returns true if the next word starts a line, or no word is left.
    pub(super) fn is_at_line_end(&self) -> bool {
        self.peek().is_none_or(|word| word.starts_line)
    }

    /// Parses a number in the format of `ip`: decimal, hexadecimal after `0x`, octal after `0`. Skips a comma after the
    /// number, and the same number in brackets as printed by `ip -s`.
    pub(super) fn number(&mut self, after: &'static str, max: u64) -> Result<u64, XfrmError> {
        let word = self.required("a number")?;
        let text = word.text.trim_end_matches(',');
        let text = text.split_once('(').map_or(text, |(number, _)| number);
        let number = parse_number(text).filter(|&number| number <= max);
        number.ok_or(Fault::Value { after, expected: "a number that fits" }.at(word.line))
    }

    /// Parses a number of 32 bits after the word `label`.
    pub(super) fn labelled(&mut self, label: &'static str) -> Result<u32, XfrmError> {
        self.literal(label)?;
        self.number32(label)
    }

    /// Parses a number of 32 bits.
    pub(super) fn number32(&mut self, after: &'static str) -> Result<u32, XfrmError> {
        Ok(self.number(after, u64::from(u32::MAX))? as u32)
    }

    /// Parses the address of one host.
    pub(super) fn address(&mut self, after: &'static str) -> Result<IpAddr, XfrmError> {
        let word = self.required("an address")?;
        let (address, len) = word.prefixed();
        let whole = |address: &IpAddr| len.is_none_or(|len| len == if address.is_ipv4() { "32" } else { "128" });
        let address = address.parse().ok().filter(whole);
        let expected = "an IPv4 or IPv6 address in figures, of one host";
        address.ok_or(Fault::Value { after, expected }.at(word.line))
    }

    /// Parses the object of a script's command. Returns `None` for a command outside xfrm.
    ///
    /// # Errors
    /// Returns an error if the command is unknown.
    pub(super) fn xfrm_object(&mut self) -> Result<Option<Object>, XfrmError> {
        const KNOWN: &str = "commands \"ip xfrm state add …\" and \"ip xfrm policy add …\", and the output of \
                             \"ip xfrm state\" and \"ip xfrm policy\"";
        /// Script commands that change no state and no policy.
        const OTHERS: [&str; 8] = ["modprobe", "sysctl", "set", "echo", "ethtool", "true", "sleep", "exit"];
        /// Other objects of `ip`.
        const OBJECTS: [&str; 10] =
            ["address", "addr", "link", "route", "rule", "neighbour", "neighbor", "tunnel", "netns", "netconf"];
        self.take("sudo");
        let program = self.required("a command")?;
        if OTHERS.contains(&program.text) {
            return Ok(None);
        }
        if !is_ip(program.text) {
            return Err(program.unknown(KNOWN));
        }
        self.skip_options();
        if self.at + 4 < self.words.len() && self.take("netns") && self.take("exec") {
            // The namespace's name and a command follow `netns exec`.
            self.next();
            return self.xfrm_object();
        }
        let object = self.required("the object of the command")?;
        if OBJECTS.contains(&object.text) || matches!(object.text, "a" | "l" | "r" | "n" | "ro" | "li" | "exec") {
            return Ok(None);
        }
        if !"xfrm".starts_with(object.text) {
            return Err(object.unknown(KNOWN));
        }
        let kind = self.required("state or policy")?;
        match kind.text {
            "sa" => Ok(Some(Object::State)),
            text if "state".starts_with(text) => Ok(Some(Object::State)),
            text if "policy".starts_with(text) => Ok(Some(Object::Policy)),
            _ => Err(kind.unknown("state and policy")),
        }
    }

    fn skip_options(&mut self) {
        while let Some(option) = self.peek().filter(|word| word.text.starts_with('-')) {
            self.next();
            if matches!(option.text, "-n" | "-netns" | "-f" | "-family") {
                self.next();
            }
        }
    }
}

/// Parses a number in the base given by its prefix (strtoul(3), base 0).
fn parse_number(text: &str) -> Option<u64> {
    // `from_str_radix` would also accept a sign.
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None if text.len() > 1 && text.starts_with('0') => (&text[1..], 8),
        None => (text, 10),
    };
    let is_digits = digits.starts_with(|c: char| c.is_ascii_hexdigit());
    is_digits.then(|| u64::from_str_radix(digits, radix).ok()).flatten()
}
