use super::*;

/// A temporary directory with files. Dropping the value removes the directory.
pub(crate) struct Files(pub(crate) PathBuf);

impl Files {
    pub(crate) fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let directory = std::env::temp_dir().join(format!("offramp-model-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        for (file, text) in files {
            std::fs::write(directory.join(file), text).unwrap();
        }
        Self(directory)
    }

    pub(crate) fn load(&self, file: &str) -> Result<Profile, ProfileError> {
        Profile::load(self.0.join(file).to_str().unwrap())
    }

    fn error(&self, file: &str) -> String {
        self.load(file).unwrap_err().to_string()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Reads the table `name` of `wrong.toml`: wrong inputs, and parts of the expected errors.
pub(crate) fn wrong(name: &str) -> Vec<[String; 3]> {
    let mut tables: BTreeMap<String, Vec<[String; 3]>> = toml::from_str(include_str!("wrong.toml")).unwrap();
    tables.remove(name).unwrap()
}

const ADAPTER: &str = "kind = \"adapter\"\ntitle = \"mine\"\nextends = \"wd8003ep\"\n[adapter]\n";

#[test]
fn every_profile_that_comes_with_offramp_is_right() {
    let listed = list();
    for system in listed.iter().filter(|listed| listed.kind == SYSTEM) {
        let profile = Profile::load(system.name).unwrap_or_else(|error| panic!("{error}"));
        assert!(!profile.title.is_empty() && !system.title.is_empty());
        assert_eq!(profile.parts.len(), SECTIONS.len() - 1, "{} names all parts", system.name);
    }
    for part in listed.iter().filter(|listed| listed.kind != SYSTEM) {
        let mut profile = Profile::default();
        profile.add(part.kind, part.name, Path::new(""), &mut Vec::new()).unwrap_or_else(|error| panic!("{error}"));
        profile.add_defaults();
        assert!(profile.said().count() > 0, "{} says something", part.name);
    }
}

#[test]
fn a_file_of_a_user_starts_from_another_one_and_says_what_differs() {
    let adapter =
        format!("{ADAPTER}memory = {{ value = 16, unit = \"KiB\", tag = \"assumed\", source = \"what if\" }}\n");
    let system = "kind = \"system\"\ntitle = \"mine\"\nextends = \"486-wd8003ep\"\n[parts]\nadapter = \"mine.toml\"\n";
    let files = Files::new("extends", &[("mine.toml", &adapter), ("system.toml", system)]);
    let profile = files.load("system.toml").unwrap();
    assert_eq!(profile.value("adapter.memory"), 16_384);
    assert_eq!(profile.value("adapter.transfer_cycles"), 3, "the rest is as it was");
    assert_eq!(profile.title, "mine");
}

#[test]
fn what_is_wrong_in_a_file_is_said_with_file_key_reason_and_nearest_name() {
    let line = |[text, key, why]: &[String; 3]| {
        let text = text.replace("REST", "tag = \"assumed\", source = \"a test\"");
        let text = format!("kind = \"system\"\ntitle = \"x\"\nextends = \"486-wd8003ep\"\n[bus]\n{text}\n");
        [text, key.clone(), why.clone()]
    };
    for [text, expected @ ..] in wrong("lines").iter().map(line).chain(wrong("files")) {
        let files = Files::new("wrong", &[("bad.toml", &text)]);
        let error = files.error("bad.toml");
        assert!(expected.iter().all(|part| error.contains(part)), "{text}\n{error}");
    }
    assert!(Profile::load("486-wd8003").unwrap_err().to_string().contains("486-wd8003e"));
    assert!(Profile::load("nowhere.toml").unwrap_err().to_string().contains("nowhere.toml"));
}

#[test]
fn an_interval_is_in_the_unit_of_its_value_and_goes_when_the_value_is_set() {
    let text = "kind = \"system\"\ntitle = \"x\"\nextends = \"486-wd8003ep\"\n[bus]\nclock = { value = 8, unit = \"MHz\", \
                interval = [7.5, 8], tag = \"measured\", source = \"a test\" }\n";
    let mut profile = Files::new("interval", &[("a.toml", text)]).load("a.toml").unwrap();
    assert_eq!(profile.quantity("bus.clock").interval, Some([7_500_000, 8_000_000]));
    assert_eq!(profile.quantity("host.tcp_time").interval, None, "nobody said");
    profile.set("bus.clock", "9MHz").unwrap();
    assert_eq!(profile.quantity("bus.clock").interval, None, "it was of another value");
}

#[test]
fn a_file_that_another_one_names_and_that_cannot_be_had_is_said_with_who_names_it() {
    for [rest, expected @ ..] in wrong("named") {
        let system = format!("kind = \"system\"\ntitle = \"x\"\n{rest}\n");
        let mine = "kind = \"adapter\"\ntitle = \"x\"\nextends = \"wd8003eq\"\n";
        let files = Files::new("named", &[("bad.toml", &system), ("mine.toml", mine)]);
        let error = files.error("bad.toml");
        assert!(expected.iter().all(|part| error.contains(part)), "{rest}\n{error}");
    }
}

#[test]
fn a_system_that_says_nothing_of_a_part_is_refused() {
    let parts = "host = \"486dx-40\"\nadapter = \"wd8003ep\"\nlink = \"ethernet-10\"\n";
    let files = Files::new("parts", &[("bad.toml", &format!("kind = \"system\"\ntitle = \"x\"\n[parts]\n{parts}"))]);
    assert!(files.error("bad.toml").contains("bad.toml: parts.peer: the peer is missing"));
    let files = Files::new("no-parts", &[("bad.toml", "kind = \"system\"\ntitle = \"x\"\n")]);
    assert!(files.error("bad.toml").contains("parts.host: the host is missing"));
}

#[test]
fn a_file_that_is_far_too_long_is_not_read_to_its_end() {
    let files = Files::new("long", &[("bad.toml", &"#".repeat(FILE_LEN_MAX as usize + 1))]);
    assert!(files.error("bad.toml").contains("the file exceeds 1048576 bytes"));
}

#[test]
fn profiles_that_extend_each_other_in_a_circle_are_refused() {
    let extends = |name: &str| format!("kind = \"system\"\ntitle = \"x\"\nextends = \"{name}\"\n");
    let files = Files::new("circle", &[("a.toml", &extends("b.toml")), ("b.toml", &extends("a.toml"))]);
    let error = files.error("a.toml");
    assert!(error.contains("extends itself") && error.contains("b.toml"), "{error}");
    // `./a.toml` is the same path as `a.toml`.
    let files = Files::new("circle-of-one", &[("a.toml", &extends("./a.toml"))]);
    assert!(files.error("a.toml").contains("extends itself"));
}

#[test]
fn a_part_says_nothing_of_another_one() {
    let text = format!("{ADAPTER}[bus]\nclock = {{ value = 8, unit = \"MHz\", tag = \"assumed\", source = \"x\" }}\n");
    let system = "kind = \"system\"\ntitle = \"x\"\nextends = \"486-wd8003ep\"\n[parts]\nadapter = \"mine.toml\"\n";
    let files = Files::new("part", &[("mine.toml", &text), ("system.toml", system)]);
    assert!(files.error("system.toml").contains("has no section bus"));
}

#[test]
fn settings_are_checked_together_and_what_is_set_in_vain_is_named() {
    let mut profile = Profile::load("486-wd8003ep").unwrap();
    let before = profile.value("bus.clock");
    let wrong = profile.set_all([("bus.clock", "9MHz"), ("adapter.access", "master")]);
    assert!(wrong.is_err() && profile.value("bus.clock") == before, "all or nothing");
    profile.set_all([("adapter.access", "master"), ("bus.kind", "pcie"), ("bus.clock", "8GHz")]).unwrap();
    for (name, text, why) in [
        ("bus.lanes", "3", "there is no pcie bus of 3 lane"),
        ("bus.clock", "33MHz", "there is no pcie bus of 33 MHz"),
        ("bus.payload", "300byte", "there is no pcie bus of 300 byte"),
    ] {
        assert!(profile.set(name, text).unwrap_err().to_string().contains(why), "{name}");
    }
    profile.set_all([("bus.burst", "64byte"), ("bus.lanes", "4"), ("workload.rpc_size", "1KiB")]).unwrap();
    let in_vain = profile.without_effect(Workload::TtcpReceive);
    let expected = ["bus.burst has no effect: bus.kind is \"pcie\"", "workload.rpc_size has no effect on ttcp-receive"];
    assert_eq!(in_vain, expected);
    assert_eq!(profile.without_effect(Workload::NfsRead), expected[..1]);
}

#[test]
fn a_user_sets_a_parameter_with_its_unit() {
    let mut profile = Profile::load("486-wd8003ep").unwrap();
    profile.set("bus.clock", "13.4 MHz").unwrap();
    assert_eq!(profile.value("bus.clock"), 13_400_000);
    profile.set("adapter.overflow", "overrun").unwrap();
    profile.set("workload.flows", "2").unwrap();
    assert_eq!(profile.value("workload.flows"), 2);
    for [name, text, why] in wrong("settings") {
        let (name, text, why) = (name.as_str(), text.as_str(), why.as_str());
        let result = profile.set(name, text).map_err(|error| error.to_string());
        assert_eq!(result.is_ok(), why.is_empty(), "{name} {result:?}");
        assert!(result.err().unwrap_or_default().contains(why), "{name}");
    }
}
