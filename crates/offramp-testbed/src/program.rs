//! Control of another program. The program's output is recorded, the program's input is written line by line, and the
//! program never outlives this process.

use crate::failure::{Doing, Failure, Result, failed};
use crate::stop;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use offramp_offload::sync::lock;
use offramp_ports::sys::{NetNs, confine};
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Interval at which a wait checks for the program's end and for a signal.
const LOOK: Duration = Duration::from_millis(50);
/// Maximum number of bytes of a program's last output in an error message, enough for a Linux kernel's last messages.
const TAIL_LEN: usize = 6000;

/// The recorded output of a program.
#[derive(Debug, Default)]
struct Output {
    stdout: String,
    stderr: String,
}

type Shared = Arc<(Mutex<Output>, Condvar)>;

/// A running program.
#[derive(Debug)]
pub struct Program {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    hopeless: Option<&'static str>,
    output: Shared,
}

/// The reason why a wait ended without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfound {
    /// A signal stopped the harness.
    Stopped,
    /// The program has ended.
    Ended(ExitStatus),
    /// The program has printed the message set by [`Program::give_up_at`].
    GaveUp,
    /// The timeout has elapsed.
    Late,
}

impl Program {
    /// Starts a command, in a namespace if given. The program is killed when the calling thread ends, and when the
    /// [`Program`] is dropped.
    ///
    /// # Errors
    /// Returns an error if the command cannot be started.
    pub fn start(name: &str, command: Command, ns: Option<&NetNs>) -> Result<Self> {
        let what = format!("starting {name} ({})", shown(&command));
        Self::spawn(name, command, ns, None).doing(what)
    }

    /// Starts a command like [`Program::start`], on the processors `cpus` if given.
    ///
    /// # Errors
    /// Returns the system's error if the command cannot be started.
    pub fn spawn(name: &str, mut command: Command, ns: Option<&NetNs>, cpus: Option<&[usize]>) -> io::Result<Self> {
        confine(&mut command, ns, cpus)?;
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let output = Shared::default();
        if let Some(stdout) = child.stdout.take() {
            collect(stdout, &output, |output| &mut output.stdout);
        }
        if let Some(stderr) = child.stderr.take() {
            collect(stderr, &output, |output| &mut output.stderr);
        }
        let stdin = child.stdin.take();
        Ok(Self { name: name.to_owned(), child, stdin, hopeless: None, output })
    }

    /// Makes every later wait fail once standard error contains `words`, a message that a running program prints when
    /// it makes no progress.
    pub fn give_up_at(&mut self, words: &'static str) {
        self.hopeless = Some(words);
    }

    /// Returns the number of bytes on standard output so far, as a mark for [`Program::wait_for`].
    pub fn mark(&self) -> usize {
        self.lock().stdout.len()
    }

    /// Returns standard output since `mark`.
    pub fn said_since(&self, mark: usize) -> String {
        self.lock().stdout[mark..].to_owned()
    }

    /// Returns the program's standard error so far.
    pub fn errors(&self) -> String {
        self.lock().stderr.clone()
    }

    /// Writes a line to the program's standard input.
    ///
    /// # Errors
    /// Returns an error if the program no longer reads its standard input.
    pub fn say(&mut self, line: &str) -> Result<()> {
        self.write(line)
            .map_err(|error| Failure::Failed(format!("telling {} \"{line}\": {error}{}", self.name, self.tail())))
    }

    /// Writes a line to the program's standard input like [`Program::say`], but returns the system's error.
    ///
    /// # Errors
    /// Returns the system's error if the program no longer reads its standard input.
    pub fn write(&mut self, line: &str) -> io::Result<()> {
        let stdin = self.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        writeln!(stdin, "{line}").and_then(|()| stdin.flush())
    }

    /// Waits until `find` returns a result for standard output since `mark`.
    ///
    /// # Errors
    /// Returns an error if there is no result within `timeout`, if the program ends, or if a signal is received. The
    /// message names the awaited result, followed by the program's last output.
    pub fn wait_for<T>(
        &mut self,
        what: &str,
        mark: usize,
        timeout: Duration,
        find: impl Fn(&str) -> Option<T>,
    ) -> Result<T> {
        self.look_for(mark, timeout, stop::flag(), find).map_err(|unfound| {
            let why = match unfound {
                Unfound::Stopped => return Failure::Stopped,
                Unfound::Ended(status) => format!("it ended ({status})"),
                Unfound::GaveUp => "it gave up".to_owned(),
                Unfound::Late => format!("not within {timeout:?}"),
            };
            Failure::Failed(format!("{}: waited for {what}: {why}{}", self.name, self.tail()))
        })
    }

    /// Waits like [`Program::wait_for`], but ends early if `stop` is set.
    ///
    /// # Errors
    /// Returns the reason if the wait ends without a result.
    pub fn look_for<T>(
        &mut self,
        mark: usize,
        timeout: Duration,
        stop: &AtomicBool,
        find: impl Fn(&str) -> Option<T>,
    ) -> std::result::Result<T, Unfound> {
        let end = Instant::now() + timeout;
        loop {
            // An error means that another caller has already reaped the program.
            let ended = self.child.try_wait().unwrap_or_default();
            let (shared, changed) = &*self.output;
            let output = lock(shared);
            if let Some(found) = find(&output.stdout[mark..]) {
                return Ok(found);
            }
            if stop.load(Ordering::Relaxed) {
                return Err(Unfound::Stopped);
            }
            if let Some(status) = ended {
                return Err(Unfound::Ended(status));
            }
            if self.hopeless.is_some_and(|words| output.stderr.contains(words)) {
                return Err(Unfound::GaveUp);
            }
            if Instant::now() >= end {
                return Err(Unfound::Late);
            }
            drop(changed.wait_timeout(output, LOOK));
        }
    }

    /// Waits until the program prints the line `ready`.
    ///
    /// # Errors
    /// Returns the errors of [`Program::wait_for`].
    pub fn wait_ready(&mut self, timeout: Duration) -> Result<()> {
        self.wait_for("\"ready\"", 0, timeout, |text| text.contains("ready\n").then_some(()))
    }

    /// Returns the program's process number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends the program a signal.
    ///
    /// # Errors
    /// Returns an error if the program has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill(Pid::from_raw(self.child.id() as i32), signal).doing(format!("sending {signal} to {}", self.name))
    }

    /// Returns whether the program has ended.
    ///
    /// # Errors
    /// Returns an error if the system call fails.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait().doing(format!("looking after {}", self.name))?.is_some())
    }

    /// Waits until the program ends by itself; sends no signal.
    ///
    /// # Errors
    /// Returns an error if the program does not end within `timeout`, or a signal is received.
    pub fn wait_end(&mut self, timeout: Duration) -> Result<ExitStatus> {
        let ended = stop::until(timeout, LOOK, || self.child.try_wait().doing(format!("looking after {}", self.name)))?;
        ended.map_or_else(|| failed(format!("{} did not end within {timeout:?}{}", self.name, self.tail())), Ok)
    }

    /// Sends SIGTERM, waits up to `patience` for the end of the program, then kills the program. Returns the last
    /// output of the program.
    pub fn terminate(mut self, patience: Duration) -> String {
        let _ = self.signal(Signal::SIGTERM);
        let _ = self.wait_end(patience);
        // The program's last output may not have been read yet.
        std::thread::sleep(LOOK);
        self.tail()
    }

    /// Returns the last output of the program, for an error message.
    pub fn tail(&self) -> String {
        let output = self.lock();
        let mut text = String::new();
        for (name, whole) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
            let from = whole.ceil_char_boundary(whole.len().saturating_sub(TAIL_LEN));
            if !whole.trim().is_empty() {
                text.extend(["\n--- ", &self.name, " ", name, " ---\n", whole[from..].trim()]);
            }
        }
        text
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Output> {
        lock(&self.output.0)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The kill fails if the program has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads a stream to its end on a separate thread. Nobody waits for the thread, because a child of the program can hold
/// the stream open after the program's end.
fn collect(mut stream: impl Read + Send + 'static, output: &Shared, part: fn(&mut Output) -> &mut String) {
    let output = Arc::clone(output);
    std::thread::spawn(move || {
        let (mut chunk, mut bytes) = ([0; 4096], Vec::new());
        while let Ok(len @ 1..) = stream.read(&mut chunk) {
            bytes.extend(&chunk[..len]);
            // The remaining bytes of a character may be in the next chunk.
            let whole = match std::str::from_utf8(&bytes) {
                Err(error) if error.error_len().is_none() => error.valid_up_to(),
                _ => bytes.len(),
            };
            let (shared, changed) = &*output;
            part(&mut lock(shared)).push_str(&String::from_utf8_lossy(&bytes[..whole]));
            bytes.drain(..whole);
            changed.notify_all();
        }
    });
}

/// Runs a command to its end, in a namespace if one is given. Returns the command's output.
///
/// # Errors
/// Returns an error if the command fails. The message contains the command's standard error.
pub fn output(mut command: Command, ns: Option<&NetNs>) -> Result<String> {
    confine(&mut command, ns, None).doing(shown(&command))?;
    let output = command.output().doing(shown(&command))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    failed(format!("{}: {}\n{}", shown(&command), output.status, said.trim()))
}

/// Waits until a socket exists.
///
/// # Errors
/// Returns an error if the socket does not exist after `timeout`.
pub fn wait_for_socket(socket: &str, timeout: Duration) -> Result<()> {
    let found = stop::until(timeout, LOOK, || Ok(Path::new(socket).exists().then_some(())))?;
    found.map_or_else(|| failed(format!("no process listens on {socket} within {timeout:?}")), Ok)
}

/// Returns a process' resident anonymous memory (`RssAnon`) in KiB. Shared memory, such as a guest's, does not count.
///
/// # Errors
/// Returns an error if the process does not exist.
pub fn own_memory_kib(id: u32) -> Result<u64> {
    let file = format!("/proc/{id}/status");
    let status = std::fs::read_to_string(&file).doing(&file)?;
    let memory = status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.split_whitespace().next());
    memory.and_then(|memory| memory.parse().ok()).map_or_else(|| failed(format!("{file}: no RssAnon")), Ok)
}

/// Formats a command for a shell.
pub fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| quoted(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./=,:@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn shell(script: &str) -> Program {
        let mut command = Command::new("sh");
        command.arg("-c").arg(script);
        Program::start("sh", command, None).unwrap()
    }

    #[test]
    fn what_a_program_answers_is_found_after_the_mark() {
        let mut program = shell("while read line; do echo got $line; done");
        program.say("one").unwrap();
        program.wait_for("an answer", 0, PATIENCE, |text| text.contains("got one\n").then_some(())).unwrap();
        let mark = program.mark();
        program.say("two").unwrap();
        let seen = program.wait_for("an answer", mark, PATIENCE, |text| text.ends_with('\n').then(|| text.to_owned()));
        assert_eq!(seen.unwrap(), "got two\n");
    }

    #[test]
    fn a_wait_for_a_program_that_has_ended_fails_with_its_last_words() {
        let mut program = shell("echo so long >&2; exit 3");
        program.wait_end(PATIENCE).unwrap();
        let error = program.wait_for("godot", 0, PATIENCE, |_| None::<()>).unwrap_err().to_string();
        assert!(error.contains("godot") && error.contains("exit status: 3"), "{error}");
    }

    #[test]
    fn a_wait_that_takes_too_long_says_what_it_waited_for() {
        let mut program = shell("exec sleep 60");
        let error = program.wait_for("godot", 0, Duration::from_millis(1), |_| None::<()>).unwrap_err();
        assert!(error.to_string().contains("waited for godot: not within"), "{error}");
    }

    #[test]
    fn a_program_that_has_given_up_is_not_waited_for() {
        let mut program = shell("echo no way >&2; exec sleep 60");
        program.give_up_at("no way");
        let error = program.wait_for("godot", 0, PATIENCE, |_| None::<()>).unwrap_err().to_string();
        assert!(error.contains("waited for godot: it gave up"), "{error}");
    }

    #[test]
    fn a_dropped_program_is_gone() {
        let program = shell("exec sleep 60");
        let pid = Pid::from_raw(program.child.id() as i32);
        drop(program);
        assert!(kill(pid, None).is_err());
    }

    #[test]
    fn a_command_is_shown_as_one_would_type_it() {
        let mut command = Command::new("qemu");
        command.args(["-m", "512", "it's", ""]);
        assert_eq!(shown(&command), r"qemu -m 512 'it'\''s' ''");
    }
}
