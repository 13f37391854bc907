//! What the kernel's files about memory say. Text in, numbers out: what is absent or makes no sense is `None`.

use rekindle_plan::Bytes;

use super::Pressure;

/// A line of `/proc/meminfo`, such as `MemAvailable`.
pub(super) fn meminfo(text: &str, key: &str) -> Option<Bytes> {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let kibibytes: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024).map(Bytes::new)
}

/// The version of the control groups that a directory belongs to: their files have other names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    One,
    Two,
}

impl Version {
    /// The files with limits. The second is where the kernel starts to slow a group down.
    pub(super) fn limits(self) -> &'static [&'static str] {
        match self {
            Self::One => &["memory.limit_in_bytes"],
            Self::Two => &["memory.max", "memory.high"],
        }
    }

    /// The file with what is used.
    pub(super) fn usage(self) -> &'static str {
        match self {
            Self::One => "memory.usage_in_bytes",
            Self::Two => "memory.current",
        }
    }
}

/// Where `/proc/self/cgroup` puts the process, for groups that count memory.
pub(super) fn group_path(text: &str, version: Version) -> Option<&str> {
    text.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let wanted = match version {
            Version::One => controllers.split(',').any(|controller| controller == "memory"),
            Version::Two => number == "0" && controllers.is_empty(),
        };
        (wanted && path.starts_with('/')).then_some(path)
    })
}

/// A file system of control groups: which of them is its root, and where it is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) root: String,
    pub(super) point: String,
}

/// Where `/proc/self/mountinfo` has the groups that count memory.
pub(super) fn mount(text: &str, version: Version) -> Option<Mount> {
    text.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (root, point) = (before.next()?, before.next()?);
        let mut after = after.split(' ');
        let (kind, options) = (after.next()?, after.nth(1)?);
        let wanted = match version {
            Version::One => kind == "cgroup" && options.split(',').any(|option| option == "memory"),
            Version::Two => kind == "cgroup2",
        };
        wanted.then(|| Mount { root: unescape(root), point: unescape(point) })
    })
}

/// Blanks, tabs, newlines and backslashes of a path are three octal digits in `mountinfo`.
fn unescape(text: &str) -> String {
    let mut plain = text.to_owned();
    for (escape, character) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        plain = plain.replace(escape, character);
    }
    plain
}

/// The path of the process's group below the mount point. The mount point itself when the group lies outside of what is
/// mounted, as in a container that sees its own group as the root.
pub(super) fn below<'a>(group: &'a str, root: &str) -> &'a str {
    let inside = group.strip_prefix(root.trim_end_matches('/')).unwrap_or("");
    let whole = inside.is_empty() || inside.starts_with('/');
    match whole && !inside.split('/').any(|part| part == "..") {
        true => inside.trim_matches('/'),
        false => "",
    }
}

/// A number alone in a file. `max` means that there is no limit, and so does what the first version says instead: the
/// largest whole number of pages.
pub(super) fn amount(text: &str) -> Option<Bytes> {
    let bytes: u64 = text.trim().parse().ok()?;
    (bytes < 1 << 62).then(|| Bytes::new(bytes))
}

/// The page cache that a group could do without, of its `memory.stat`. The first version has the children's apart.
pub(super) fn reclaimable(text: &str) -> Option<Bytes> {
    let line = |key: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        value?.trim().parse().ok().map(Bytes::new)
    };
    line("total_inactive_file").or_else(|| line("inactive_file"))
}

/// `some avg10` of a pressure file.
pub(super) fn pressure(text: &str) -> Option<Pressure> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let value = some.split(' ').find_map(|word| word.strip_prefix("avg10="))?;
    let percent: f64 = value.parse().ok()?;
    (0.0..=100.0).contains(&percent).then(|| Pressure::percent(percent))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_the_kernel_writes_is_read() {
        let text = "MemTotal:       16 kB\nMemFree: 1 kB\nMemAvailable:    3 kB\n";
        assert_eq!(meminfo(text, "MemAvailable"), Some(Bytes::new(3072)));
        assert_eq!(meminfo(text, "MemTotal"), Some(Bytes::new(16384)));
        assert_eq!(amount("4096\n"), Some(Bytes::new(4096)));
        assert_eq!(reclaimable("anon 1\nactive_file 2\ninactive_file 30\n"), Some(Bytes::new(30)));
        let first_version = "inactive_file 30\ntotal_inactive_file 50\n";
        assert_eq!(reclaimable(first_version), Some(Bytes::new(50)));
        let text =
            "some avg10=12.34 avg60=1.00 avg300=0.10 total=9\nfull avg10=99.00 avg60=0 avg300=0 total=1\n";
        assert_eq!(pressure(text), Some(Pressure::percent(12.34)));
    }

    #[test]
    fn no_limit_is_no_number() {
        assert_eq!(amount("max\n"), None);
        assert_eq!(amount("9223372036854771712\n"), None);
    }

    #[test]
    fn nonsense_is_unknown() {
        for text in ["", "\n", "MemAvailable", "MemAvailable:", "MemAvailable: kB", "MemAvailable: -1 kB"] {
            assert_eq!(meminfo(text, "MemAvailable"), None, "{text}");
        }
        assert_eq!(meminfo("MemAvailable: 18446744073709551615 kB", "MemAvailable"), None);
        assert_eq!(meminfo("MemAvailableX: 1 kB", "MemAvailable"), None);
        for text in ["", "-1", "1.5", "0x10", "99999999999999999999", "1 2"] {
            assert_eq!(amount(text), None, "{text}");
        }
        for text in ["", "some", "some ", "some avg10=", "some avg10=NaN", "some avg10=-1", "full avg10=1.00"]
        {
            assert_eq!(pressure(text), None, "{text}");
        }
        for text in ["", "inactive_file", "inactive_file x", "inactive_files 3"] {
            assert_eq!(reclaimable(text), None, "{text}");
        }
    }

    #[test]
    fn a_process_is_found_in_groups_of_both_versions() {
        let both = "5:cpu,memory:/old/one\n4:cpu:/other\n0::/new/two\n";
        assert_eq!(group_path(both, Version::One), Some("/old/one"));
        assert_eq!(group_path(both, Version::Two), Some("/new/two"));
        assert_eq!(group_path("0::/with:colon\n", Version::Two), Some("/with:colon"));
        for text in ["", "0", "0:", "0::", "0::relative", "1:memoryless:/a"] {
            assert_eq!(group_path(text, Version::One), None, "{text}");
            assert_eq!(group_path(text, Version::Two), None, "{text}");
        }
    }

    #[test]
    fn mounts_of_both_versions_are_found() {
        let text = "24 1 0:5 / /proc rw - proc proc rw\n\
                    30 24 0:26 /docker/abc /sys/fs/group\\040dir ro,nosuid shared:9 - cgroup2 cgroup2 rw\n\
                    35 31 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let two = mount(text, Version::Two).unwrap();
        assert_eq!((two.root.as_str(), two.point.as_str()), ("/docker/abc", "/sys/fs/group dir"));
        assert_eq!(mount(text, Version::One).unwrap().point, "/sys/fs/cgroup/memory");
        for text in ["", " - ", "1 2 3 - cgroup2", "1 2 3 4 5 - cgroup2 x", "a - b - c"] {
            assert_eq!(mount(text, Version::Two), None, "{text}");
        }
    }

    #[test]
    fn a_group_outside_of_what_is_mounted_is_the_mount_point() {
        assert_eq!(below("/user/train", "/"), "user/train");
        assert_eq!(below("/docker/abc/inner", "/docker/abc"), "inner");
        assert_eq!(below("/docker/abc", "/docker/abc"), "");
        assert_eq!(below("/docker/abcd", "/docker/abc"), "");
        assert_eq!(below("/elsewhere", "/docker/abc"), "");
        assert_eq!(below("/../../escape", "/"), "");
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(?s)(.|some |avg10=|MemAvailable:| kB|\n| - |:|/|0::|cgroup2 ){0,40}") {
            meminfo(&text, "MemAvailable");
            amount(&text);
            reclaimable(&text);
            pressure(&text);
            for version in [Version::One, Version::Two] {
                if let Some(path) = group_path(&text, version) {
                    below(path, "/a");
                }
                mount(&text, version);
            }
        }
    }
}
