//! Runs tshark with the dissector over frames.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use isthmus_capture::pcapng::Writer;
use isthmus_capture::{CaptureDirection, CapturedFrame, InterfaceIndex, PcapInterface};
use isthmus_mx::wire::Dialect;

/// The values shown of one frame by column: the empty string for no value, `|` between several.
#[derive(Debug)]
pub(crate) struct Row(BTreeMap<String, String>);

impl Row {
    pub(crate) fn get(&self, column: &str) -> &str {
        self.0.get(column).map_or("", String::as_str)
    }
}

/// A tshark that can be used.
pub(crate) struct Tshark {
    /// Its settings and plugins come from here: from nowhere but this repository.
    home: tempfile::TempDir,
}

/// The dissector.
fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/wireshark/mxoe.lua")
}

impl Tshark {
    /// None, said, where there is no tshark with Lua.
    pub(crate) fn find() -> Option<Self> {
        let version = Command::new("tshark").arg("--version").output();
        let text = version.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        if !text.contains("with Lua") {
            println!("skipped: no tshark with Lua in PATH (apt-get install tshark)");
            return None;
        }
        Some(Self { home: tempfile::tempdir().unwrap() })
    }

    /// One of Wireshark's programs, and what it says. It must not complain.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> String {
        let output = Command::new(program)
            .args(arguments)
            .env("HOME", self.home.path())
            .env("XDG_CONFIG_HOME", self.home.path())
            .env("LC_ALL", "C.UTF-8")
            .output()
            .unwrap();
        assert_content(program, &output);
        String::from_utf8(output.stdout).unwrap()
    }

    /// Shows columns of each frame in the file, by a dialect and other settings (`name:value`).
    pub(crate) fn show_file(&self, dialect: Dialect, prefs: &[&str], file: &Path, columns: &[&str]) -> Vec<Row> {
        let script = format!("lua_script:{}", script().display());
        let dialect = if dialect == Dialect::Mx { "mxoe.dialect:mx" } else { "mxoe.dialect:open-mx" };
        let mut arguments = vec!["-X", &script, "-n", "-2", "-o", dialect, "-r", file.to_str().unwrap()];
        prefs.iter().for_each(|pref| arguments.extend(["-o", pref]));
        arguments.extend(["-T", "fields", "-E", "separator=/t", "-E", "occurrence=a", "-E", "aggregator=|"]);
        columns.iter().for_each(|column| arguments.extend(["-e", column]));
        let text = self.run("tshark", &arguments);
        let row = |line: &str| {
            Row(columns.iter().map(|&name| name.to_owned()).zip(line.split('\t').map(str::to_owned)).collect())
        };
        text.lines().map(row).collect()
    }

    /// Shows columns of frames.
    pub(crate) fn show(&self, dialect: Dialect, prefs: &[&str], frames: &[Vec<u8>], columns: &[&str]) -> Vec<Row> {
        let whole: Vec<(usize, &[u8])> = frames.iter().map(|frame| (frame.len(), frame.as_slice())).collect();
        self.show_cut(dialect, prefs, &whole, columns)
    }

    /// Shows columns of frames of which the capture has kept a part: how many bytes each had, and those that are left.
    pub(crate) fn show_cut(
        &self,
        dialect: Dialect,
        prefs: &[&str],
        frames: &[(usize, &[u8])],
        columns: &[&str],
    ) -> Vec<Row> {
        let file = self.home.path().join("frames.pcapng");
        let mut writer = Writer::new(Vec::new(), &[PcapInterface::new("wire0", "")]).unwrap();
        for (time, (had, bytes)) in (1u64..).zip(frames) {
            let (interface, direction) = (InterfaceIndex(0), CaptureDirection::Received);
            let record =
                CapturedFrame { time_ns: time * 1000, interface, direction, original_bytes: *had as u32, bytes };
            writer.write(&record).unwrap();
        }
        std::fs::write(&file, writer.finish(&[]).unwrap()).unwrap();
        let rows = self.show_file(dialect, prefs, &file, columns);
        assert_eq!(rows.len(), frames.len());
        rows
    }

    /// A place for a file.
    pub(crate) fn folder(&self) -> &Path {
        self.home.path()
    }
}

/// A program that ended well and has nothing to say but that root should not run it.
fn assert_content(program: &str, output: &Output) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let complaints: Vec<&str> = err.lines().filter(|line| !line.contains("This could be dangerous")).collect();
    assert!(output.status.success() && complaints.is_empty(), "{program}, {}: {complaints:?}", output.status);
    assert!(
        !out.contains("Lua Error"),
        "{program}: {}",
        out.lines().find(|line| line.contains("Lua Error")).unwrap_or("")
    );
}
