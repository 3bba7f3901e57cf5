//! `offramp sa import`: imports the IPsec states and policies of a Linux kernel (`ip xfrm`) as associations of a port.

use super::STANDARD_INPUT;
use offramp_daemon::control::client::ask;
use offramp_daemon::schema::{KeyText, LifetimeKeys, SaKeys, SelectorKeys, UdpKeys, Word, open_private};
use offramp_daemon::schema::{Outcome, Request, VERSION};
use offramp_offload::esp::xfrm::{Association, Direction, Owner, XfrmConfig};
use offramp_offload::esp::{DfRule, DscpRule, EcnRule, Lifetime, Mode, Prefix, SaConfig, Selector, Tunnel};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Maximum length of the text, in bytes: sufficient for some thousand associations.
const TEXT_LEN_MAX: u64 = 1 << 20;

/// Import what `ip xfrm` takes and prints
#[derive(clap::Args)]
pub struct Args {
    /// The port
    port: String,
    /// Commands "ip xfrm … add", or the output of "ip xfrm state" and "ip xfrm policy", with the keys
    #[arg(default_value = STANDARD_INPUT)]
    file: PathBuf,
    /// The text is the far end's configuration, not this host's own
    #[arg(long)]
    peer: bool,
    /// Allow suites meant only for old peers
    #[arg(long)]
    legacy: bool,
    /// Print the associations as [[port.sa]] for the daemon's file, without the keys, and install nothing
    #[arg(long)]
    dry_run: bool,
}

/// An association in the form that the daemon accepts.
struct Entry {
    /// Line number of the association's source in the text.
    line: usize,
    direction: Direction,
    spi: u32,
    sa: SaKeys,
    key: KeyText,
}

/// Installs the associations, and returns the text to print: the port's associations, or the entries of a dry run.
///
/// # Errors
/// Returns an error of one line if the text or its file is invalid, or the daemon refuses. After an error, no
/// association of the text is installed.
pub fn run(args: &Args, control: &Path) -> Result<String, String> {
    let text = read(&args.file)?;
    let owner = if args.peer { Owner::Peer } else { Owner::Host };
    let entries = entries(&text, owner, args.legacy).map_err(|why| format!("{}: {why}", args.file.display()))?;
    if args.dry_run {
        return Ok(shown(&entries));
    }
    install(&args.port, control, entries)
}

/// Reads standard input or a file. Refuses a file that is accessible to any user except its owner.
fn read(file: &Path) -> Result<Zeroizing<String>, String> {
    let failed = |cause: String| format!("{}: {cause}", file.display());
    // Allocate the full length: a growing buffer would leave copies of the keys that are not wiped.
    let mut text = Zeroizing::new(String::with_capacity(TEXT_LEN_MAX as usize + 1));
    let read = if file == Path::new(STANDARD_INPUT) {
        io::stdin().take(TEXT_LEN_MAX + 1).read_to_string(&mut text)
    } else {
        open_private(file, None).map_err(failed)?.take(TEXT_LEN_MAX + 1).read_to_string(&mut text)
    };
    read.map_err(|cause| failed(cause.to_string()))?;
    if text.len() as u64 > TEXT_LEN_MAX {
        return Err(failed(format!("more than {TEXT_LEN_MAX} bytes")));
    }
    Ok(text)
}

fn entries(text: &str, owner: Owner, is_legacy: bool) -> Result<Vec<Entry>, String> {
    let config = XfrmConfig::parse(text).map_err(|error| error.to_string())?;
    if let Some(policy) = config.clear_policies().next() {
        return Err(format!(
            "line {}: a policy without a tmpl is not installed; leave it out, and write port.policy for the packets \
             to pass or to discard",
            policy.line
        ));
    }
    let associations = config.associations(owner, is_legacy).map_err(|error| error.to_string())?;
    if associations.is_empty() {
        return Err("there is no state in it".to_owned());
    }
    associations.iter().map(Entry::of).collect()
}

/// Installs all associations or none: after a refusal, removes the associations already added.
fn install(port: &str, control: &Path, entries: Vec<Entry>) -> Result<String, String> {
    let mut added: Vec<(Direction, u32)> = Vec::new();
    let mut last = String::new();
    for Entry { line, direction, spi, sa, key } in entries {
        let request = Request::SaAdd { version: VERSION, port: port.to_owned(), sa: Box::new(sa), key };
        match ask(control, &request) {
            Ok(Outcome::Ipsec(status)) => last = super::lines(&status),
            Ok(_) => return Err(undo(port, control, &added, "the daemon gave another answer")),
            Err(error) => return Err(undo(port, control, &added, &format!("line {line}: {error}"))),
        }
        added.push((direction, spi));
    }
    Ok(last)
}

fn undo(port: &str, control: &Path, added: &[(Direction, u32)], why: &str) -> String {
    let mut left = Vec::new();
    for &(direction, spi) in added.iter().rev() {
        let (port, direction) = (port.to_owned(), direction.to_string());
        let request = Request::SaDel { version: VERSION, port, direction: direction.clone(), spi };
        if ask(control, &request).is_err() {
            left.push(format!("{direction} {spi:#010x}"));
        }
    }
    if left.is_empty() {
        format!("{why}; nothing is installed")
    } else {
        format!("{why}; still installed: {}", left.join(", "))
    }
}

/// Formats the entries for the daemon's file, with a placeholder for each key file.
fn shown(entries: &[Entry]) -> String {
    let mut text = String::new();
    for entry in entries {
        let name = format!("/etc/offramp/{}-{:08x}.key", entry.direction, entry.spi);
        let sa = SaKeys { key_file: Some(name.into()), ..entry.sa.clone() };
        // Prefix the name of each TOML table inside an association with the name of the association's table.
        let keys = toml::to_string(&sa).unwrap_or_default().replace("\n[", "\n[port.sa.");
        text.extend(["# line ", &entry.line.to_string(), "\n[[port.sa]]\n", &keys, "\n"]);
    }
    text
}

impl Entry {
    fn of(association: &Association) -> Result<Self, String> {
        let config = &association.config;
        let keys = [config.encryption_key.to_hex(), config.integrity_key.to_hex()];
        let mut words = Zeroizing::new(String::with_capacity(keys.iter().map(|key| key.len() + 1).sum()));
        for key in keys.iter().filter(|key| !key.is_empty()) {
            words.push_str(key);
            words.push('\n');
        }
        let key = KeyText::from_reader(words.as_bytes())?;
        let (line, direction) = (association.line, association.direction);
        Ok(Self { line, direction, spi: config.spi, sa: keys_of(direction, config), key })
    }
}

/// Returns the configuration keys of an association, without keys that have their default values.
fn keys_of(direction: Direction, config: &SaConfig) -> SaKeys {
    let mut keys = SaKeys {
        direction: Some(direction.to_string()),
        spi: Some(i64::from(config.spi)),
        suite: Some(config.suite.name().to_owned()),
        legacy: config.suite.is_legacy().then_some(true),
        destination: config.destination,
        esn: config.esn.then_some(true),
        replay_window: (direction == Direction::In).then_some(config.replay_window),
        sequence: Some(config.sequence).filter(|&sequence| sequence > 0),
        udp: config.udp.map(|udp| UdpKeys {
            source: Some(udp.source),
            destination: Some(udp.destination),
            keepalive_seconds: config.keepalive_seconds,
        }),
        lifetime: (config.lifetime != Lifetime::default()).then_some(LifetimeKeys(config.lifetime)),
        selector: selector_of(&config.selector),
        ..SaKeys::default()
    };
    if let Mode::Tunnel(tunnel) = &config.mode {
        keys.mode = Some("tunnel".to_owned());
        keys.source = Some(tunnel.source);
        keys.destination = Some(tunnel.destination);
        let plain = Tunnel::new(tunnel.source, tunnel.destination);
        keys.df = (tunnel.df != plain.df).then(|| if tunnel.df == DfRule::Set { "set" } else { "clear" }.to_owned());
        keys.ecn = (tunnel.ecn == EcnRule::Compatibility).then(|| "compatibility".to_owned());
        keys.dscp = match tunnel.dscp {
            DscpRule::Copy => None,
            DscpRule::Set(value) => Some(i64::from(value)),
        };
    }
    keys
}

fn selector_of(selector: &Selector) -> Option<SelectorKeys> {
    let prefix = |prefix: Option<Prefix>| prefix.map(|prefix| format!("{}/{}", prefix.address(), prefix.prefix_len()));
    let ports = |ports: &Option<std::ops::RangeInclusive<u16>>| {
        ports.as_ref().map(|ports| Word::Text(format!("{}-{}", ports.start(), ports.end())))
    };
    (*selector != Selector::default()).then(|| SelectorKeys {
        source: prefix(selector.source),
        destination: prefix(selector.destination),
        protocol: selector.protocol.map(|protocol| Word::Number(u16::from(protocol))),
        source_ports: ports(&selector.source_ports),
        destination_ports: ports(&selector.destination_ports),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use offramp_daemon::schema::Shape;

    const TEXT: &str = "\
ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1001 reqid 1 mode tunnel \\
    aead 'rfc4106(gcm(aes))' 0x00112233445566778899aabbccddeeff00112233 128 replay-window 64 flag esn noecn \\
    replay-oseq 7 limit byte-soft 1000 limit time-hard 60 extra-flag dont-encap-dscp
ip xfrm state add src 192.0.2.2 dst 192.0.2.1 proto esp spi 0x1002 reqid 2 mode tunnel \\
    enc 'cbc(aes)' 0x00112233445566778899aabbccddeeff \\
    auth-trunc 'hmac(sha256)' 0xff112233445566778899aabbccddeeff00112233445566778899aabbccddeeff 128 \\
    encap espinudp 4500 4501 0.0.0.0
ip xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 proto tcp dport 80 dir out \\
    tmpl src 192.0.2.1 dst 192.0.2.2 proto esp reqid 1 mode tunnel
ip xfrm policy add src 10.2.0.0/16 dst 10.1.0.0/16 dir in \\
    tmpl src 192.0.2.2 dst 192.0.2.1 proto esp reqid 2 mode tunnel
";

    #[test]
    fn what_the_daemon_is_told_makes_the_same_association() {
        for owner in [Owner::Host, Owner::Peer] {
            let config = XfrmConfig::parse(TEXT).unwrap();
            for association in config.associations(owner, false).unwrap() {
                let entry = Entry::of(&association).unwrap();
                let told: SaKeys = serde_json::from_str(&serde_json::to_string(&entry.sa).unwrap()).unwrap();
                let mut made = told.config(&entry.key, Shape { queue_pairs: 1 }).unwrap();
                if association.direction == Direction::Out {
                    // An outbound association has no replay window in the file.
                    made.replay_window = association.config.replay_window;
                }
                assert_eq!(made, association.config, "{owner:?}");
                assert_eq!(told.direction().unwrap().to_string(), association.direction.to_string());
            }
        }
    }

    #[test]
    fn a_dry_run_prints_what_the_file_takes_and_no_key() {
        let text = shown(&entries(TEXT, Owner::Peer, false).unwrap());
        assert!(!text.contains("2233"), "{text}");
        let mut file: toml::Table = toml::from_str(&format!("[[port]]\n{text}")).unwrap();
        let mut port = file.remove("port").unwrap().as_array().unwrap()[0].clone();
        let written: Vec<SaKeys> = port.as_table_mut().unwrap().remove("sa").unwrap().try_into().unwrap();
        let entries = entries(TEXT, Owner::Peer, false).unwrap();
        assert_eq!(written.len(), entries.len());
        for (written, entry) in written.into_iter().zip(entries) {
            assert_eq!((written.key_file.is_some(), written.without_file()), (true, entry.sa));
        }
    }

    #[test]
    fn policies_that_protect_nothing_and_empty_texts_are_refused() {
        let clear = TEXT.to_owned() + "ip xfrm policy add src 10.9.0.0/16 dst 10.2.0.0/16 dir out action block\n";
        let error = entries(&clear, Owner::Host, false).err().unwrap();
        assert!(error.contains("line 12") && error.contains("port.policy"), "{error}");
        assert!(entries("", Owner::Host, false).err().unwrap().contains("no state"));
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let file = std::env::temp_dir().join(format!("ofr-import-{}", std::process::id()));
        std::fs::write(&file, TEXT).unwrap();
        std::fs::set_permissions(&file, <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o644))
            .unwrap();
        let refused = read(&file).unwrap_err();
        std::fs::set_permissions(&file, <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o600))
            .unwrap();
        let text = read(&file);
        std::fs::remove_file(&file).unwrap();
        assert!(refused.contains("chmod 600"), "{refused}");
        assert_eq!(*text.unwrap(), TEXT);
    }
}
