//! The file of a program or library, as far as it decides whether a library can be loaded.
//!
//! ```text
//! name ─ PATH ─▶ file ─ #! ─▶ interpreter's file ─▶ ELF: PT_INTERP ─▶ Linking
//! ```
//!
//! The dynamic linker that PT_INTERP names loads the libraries in `LD_PRELOAD`. A static program has none. The linker of another C library
//! than glibc cannot load a library that needs glibc: the program then fails to start. For a program with rights of its file, the linker
//! ignores `LD_PRELOAD`, and removes it from the environment.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, StatVfsMountFlags, access, getxattr, statvfs};
use rustix::process::{getegid, geteuid, getgid, getuid};

/// The way by which a program gets its libraries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Linking {
    /// No dynamic linker.
    Static,
    /// This dynamic linker.
    Dynamic(PathBuf),
    /// A program of another word size or byte order than this one.
    OtherMachine,
}

/// A program that exec would start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProgramFile {
    /// The file with the machine code; for a script, that of its interpreter.
    pub(crate) path: PathBuf,
    /// None for a file that cannot be read.
    pub(crate) linking: Option<Linking>,
    /// Whether exec gives it rights of its file: those of another user or group, or capabilities.
    pub(crate) is_secure: bool,
}

/// The reason why a program does not load a library of ours that is preloaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unfit {
    pub(crate) why: String,
    /// Whether the program starts with the variables, and passes them on to the programs that it starts.
    pub(crate) children_load: bool,
}

/// The cause for a program with rights of its file.
pub(crate) const SECURE: &str =
    "has the rights of its file (setuid, setgid or capabilities), so LD_PRELOAD has no effect";

/// The cause for a program without a dynamic linker.
pub(crate) const STATIC: &str = "is a static executable, which loads no library";

/// The parts of a file that decide whether its program is secure.
#[derive(Clone, Debug)]
struct FileRights {
    uid: u32,
    gid: u32,
    mode: u32,
    /// Whether exec ignores the bits for the user and the group: it does in a file system without them, and after no_new_privs.
    are_bits_ignored: bool,
    /// The attribute `security.capability`, empty if there is none or if it is ignored.
    capabilities: Vec<u8>,
}

/// The real user and group of the process that calls exec. Its effective ones are the same.
#[derive(Clone, Copy, Debug)]
struct Caller {
    uid: u32,
    gid: u32,
}

/// Scripts may have scripts as interpreters; the kernel follows as many.
const SCRIPTS_MAX: usize = 5;

/// The bytes of a script's first line that count, as in the kernel.
const SCRIPT_LINE_MAX: usize = 256;

/// More than a path may have, with its final zero.
const INTERPRETER_MAX: u64 = 4096;

/// More than the names and versions of a library that we ask about take.
const SECTION_MAX: u64 = 1 << 20;

impl ProgramFile {
    /// Finds the program that exec would start. Returns none if there is no such file, or if it cannot be read.
    pub(crate) fn find(program: &OsStr) -> Option<Self> {
        let mut program = program.to_owned();
        for _ in 0..=SCRIPTS_MAX {
            let path = in_path(&program, std::env::var_os("PATH"))?;
            let is_secure = is_secure(&path);
            let file = match File::open(&path) {
                Ok(file) => file,
                Err(_) if is_secure => return Some(Self { path, linking: None, is_secure }),
                Err(_) => return None,
            };
            match script_interpreter(&file) {
                Some(interpreter) => program = interpreter,
                None => return Some(Self { linking: Some(Linking::read(&file).ok()??), path, is_secure }),
            }
        }
        None
    }

    /// Returns why the program does not load a library of ours that LD_PRELOAD names.
    pub(crate) fn unfit(&self, library: &str) -> Option<Unfit> {
        let path = self.path.display();
        let other = self.linking.as_ref().and_then(|linking| other_c_library(&self.path, linking, library));
        if other.is_some() || self.is_secure {
            let why = other.unwrap_or_else(|| format!("{path} {SECURE}"));
            return Some(Unfit { why, children_load: false });
        }
        let is_static = self.linking == Some(Linking::Static);
        is_static.then(|| Unfit { why: format!("{path} {STATIC}"), children_load: true })
    }
}

/// Returns whether exec makes a program secure. A process with other effective users than its real one is so without rights of the file.
fn is_secure(path: &Path) -> bool {
    let caller = Caller { uid: getuid().as_raw(), gid: getgid().as_raw() };
    let is_changed = (geteuid().as_raw(), getegid().as_raw()) != (caller.uid, caller.gid);
    !is_changed && FileRights::read(path).is_ok_and(|file| file.make_secure(caller))
}

impl FileRights {
    fn read(path: &Path) -> io::Result<Self> {
        let found = std::fs::metadata(path)?;
        let has_no_rights = statvfs(path)?.f_flag.contains(StatVfsMountFlags::NOSUID);
        let mut attribute = [0u8; 32];
        let length = if has_no_rights { 0 } else { getxattr(path, "security.capability", &mut attribute).unwrap_or(0) };
        Ok(Self {
            uid: found.uid(),
            gid: found.gid(),
            mode: found.mode(),
            are_bits_ignored: has_no_rights || rustix::thread::no_new_privs().unwrap_or(false),
            capabilities: attribute[..length].to_vec(),
        })
    }

    /// Decides as the kernel does (`cap_bprm_creds_from_file`), except for inheritable capabilities.
    fn make_secure(&self, caller: Caller) -> bool {
        const SETUID: u32 = 0o4000;
        const SETGID_AND_EXECUTE: u32 = 0o2010;
        let has = |bits: u32| !self.are_bits_ignored && self.mode & bits == bits;
        let is_other_user = has(SETUID) && self.uid != caller.uid;
        let is_other_group = has(SETGID_AND_EXECUTE) && self.gid != caller.gid;
        is_other_user || is_other_group || caller.uid != 0 && self.has_capabilities()
    }

    /// Returns whether the attribute has the bit of the effective set, or permits a capability. Its words are the version with the bit, and
    /// twice a word of the permitted and one of the inheritable set.
    fn has_capabilities(&self) -> bool {
        const EFFECTIVE: u32 = 1;
        let (words, _) = self.capabilities.as_chunks::<4>();
        let word = |at: usize| words.get(at).map_or(0, |bytes| u32::from_le_bytes(*bytes));
        word(0) & EFFECTIVE != 0 || word(1) != 0 || word(3) != 0
    }
}

impl Linking {
    /// Reads the linking of a file. None if the file has no machine code.
    pub(crate) fn read(file: &File) -> io::Result<Option<Self>> {
        let mut head = [0u8; 64];
        let length = read_at(file, &mut head, 0)?;
        if length < head.len() || !head.starts_with(b"\x7fELF") {
            return Ok(None);
        }
        // ELFCLASS64 and ELFDATA2LSB, which every machine that Isthmus runs on has.
        if head[4..6] != [2, 1] {
            return Ok(Some(Self::OtherMachine));
        }
        let (table, entry, count) = (word(&head[32..40]), half(&head[54..56]), half(&head[56..58]));
        for at in 0..u64::from(count) {
            let mut header = [0u8; 40];
            let place = at.checked_mul(u64::from(entry)).and_then(|offset| offset.checked_add(table));
            if read_at(file, &mut header, place.ok_or(io::ErrorKind::InvalidData)?)? < header.len() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            const PT_INTERP: [u8; 4] = 3u32.to_le_bytes();
            if header[..4] == PT_INTERP {
                return interpreter(file, word(&header[8..16]), word(&header[32..40])).map(Some);
            }
        }
        Ok(Some(Self::Static))
    }

    /// True if glibc's dynamic linker of this machine loads the program.
    pub(crate) fn is_glibc(&self) -> bool {
        matches!(self, Self::Dynamic(linker) if linker.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-linux")))
    }
}

/// Returns the names of the versions that a library defines, without loading it. None if the file is no library of this machine.
pub(crate) fn defined_versions(file: &File) -> io::Result<Option<Vec<String>>> {
    let mut head = [0u8; 64];
    if read_at(file, &mut head, 0)? < head.len() || !head.starts_with(b"\x7fELF\x02\x01") {
        return Ok(None);
    }
    let (table, entry, count) = (word(&head[40..48]), half(&head[58..60]), half(&head[60..62]));
    let section = |index: u32| -> io::Result<[u8; 64]> {
        let at = u64::from(index) * u64::from(entry);
        exactly(file, table.saturating_add(at), 64).map(|bytes| bytes.try_into().expect("64 bytes"))
    };
    let contents = |header: &[u8; 64]| exactly(file, word(&header[24..32]), word(&header[32..40]));
    for index in 0..u32::from(count) {
        let header = section(index)?;
        const SHT_GNU_VERDEF: u32 = 0x6FFF_FFFD;
        if long(&header[4..8]) == SHT_GNU_VERDEF {
            let names = contents(&section(long(&header[40..44]))?)?;
            return versions(&contents(&header)?, &names).ok_or(io::ErrorKind::InvalidData.into()).map(Some);
        }
    }
    Ok(Some(Vec::new()))
}

/// Reads a table of version definitions. None if it points outside of itself or of the names.
fn versions(table: &[u8], names: &[u8]) -> Option<Vec<String>> {
    let (mut versions, mut at) = (Vec::new(), 0usize);
    loop {
        let definition = table.get(at..)?.get(..20)?;
        let (name, next) = (long(&definition[12..16]) as usize, long(&definition[16..20]) as usize);
        let name = long(table.get(at.checked_add(name)?..)?.get(..4)?) as usize;
        let name = names.get(name..)?.split(|&byte| byte == 0).next()?;
        versions.push(String::from_utf8_lossy(name).into_owned());
        if next == 0 {
            return Some(versions);
        }
        at = at.checked_add(next.max(definition.len()))?;
    }
}

/// Reads as many bytes, at most [`SECTION_MAX`].
fn exactly(file: &File, at: u64, length: u64) -> io::Result<Vec<u8>> {
    if length > SECTION_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length as usize];
    match read_at(file, &mut bytes, at)? == bytes.len() {
        true => Ok(bytes),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn interpreter(file: &File, at: u64, length: u64) -> io::Result<Linking> {
    if length > INTERPRETER_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut path = vec![0; length as usize];
    let length = read_at(file, &mut path, at)?;
    path.truncate(length);
    if let Some(end) = path.iter().position(|&byte| byte == 0) {
        path.truncate(end);
    }
    Ok(Linking::Dynamic(OsString::from_vec(path).into()))
}

/// Reads until the buffer is full or the file ends.
fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], at.saturating_add(done as u64)) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("the caller takes 8 bytes"))
}

fn long(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes.try_into().expect("the caller takes 4 bytes"))
}

fn half(bytes: &[u8]) -> u16 {
    u16::from_le_bytes(bytes.try_into().expect("the caller takes 2 bytes"))
}

/// Returns the interpreter of a script. For `#!/usr/bin/env NAME`, that is NAME: env replaces itself by it.
fn script_interpreter(file: &File) -> Option<OsString> {
    let mut line = [0u8; SCRIPT_LINE_MAX];
    let length = read_at(file, &mut line, 0).ok()?;
    let line = line[..length].strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    let mut words = line.split(|byte| b" \t\r".contains(byte)).filter(|word| !word.is_empty());
    let interpreter = words.next()?;
    let is_env = interpreter.rsplit(|&byte| byte == b'/').next() == Some(b"env");
    let named = words.find(|word| is_env && !word.starts_with(b"-") && !word.contains(&b'='));
    Some(OsStr::from_bytes(named.unwrap_or(interpreter)).to_owned())
}

/// Finds a program as execvp does: a name without a slash is searched for in the folders of PATH.
fn in_path(program: &OsStr, path: Option<OsString>) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        // A pipe would wait for its writer.
        return Some(program.into()).filter(|file: &PathBuf| file.is_file());
    }
    let path = path.unwrap_or_else(|| "/bin:/usr/bin".into());
    let is_program = |file: &PathBuf| file.is_file() && access(file, Access::EXEC_OK).is_ok();
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(is_program)
}

/// Returns why a program would not start with a library of ours.
pub(crate) fn other_c_library(program: &Path, linking: &Linking, library: &str) -> Option<String> {
    let path = program.display();
    match linking {
        Linking::Dynamic(linker) if !linking.is_glibc() => {
            Some(format!("{path} is loaded by {}, and {library} needs glibc", linker.display()))
        }
        Linking::OtherMachine => Some(format!("{path} is no 64-bit program, and {library} is one")),
        Linking::Static | Linking::Dynamic(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    /// An ELF file with one program header.
    fn elf(kind: u32, interpreter: &[u8]) -> Vec<u8> {
        let mut file = vec![0; 64 + 56];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[32] = 64; // The table of program headers is behind the header.
        file[54] = 56;
        file[56] = 1;
        file[64..68].copy_from_slice(&kind.to_le_bytes());
        file[72] = 120; // The interpreter is behind the table.
        file[96] = interpreter.len() as u8;
        file.extend(interpreter);
        file
    }

    fn linking(contents: &[u8]) -> io::Result<Option<Linking>> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("program");
        fs::write(&path, contents).expect("the folder is ours");
        Linking::read(&File::open(path).expect("it was written"))
    }

    #[test]
    fn program_header_names_the_dynamic_linker() {
        let linker = |path: &str| linking(&elf(3, format!("{path}\0").as_bytes())).expect("read").expect("a program");
        let glibc = linker("/lib64/ld-linux-x86-64.so.2");
        assert_eq!(glibc, Linking::Dynamic("/lib64/ld-linux-x86-64.so.2".into()));
        assert!(glibc.is_glibc() && linker("/nix/store/x-glibc/lib/ld-linux-x86-64.so.2").is_glibc());
        assert!(!linker("/lib/ld-musl-x86_64.so.1").is_glibc() && !linker("/system/bin/linker64").is_glibc());
        assert_eq!(linking(&elf(1, b"")).expect("read"), Some(Linking::Static));
    }

    #[test]
    fn static_program_and_one_with_rights_of_its_file_do_not_load_a_library() {
        let program =
            |linking: Linking, is_secure| ProgramFile { path: "/opt/p".into(), linking: Some(linking), is_secure };
        let unfit = |program: ProgramFile| program.unfit("ours.so").map(|unfit| (unfit.why, unfit.children_load));
        let glibc = || Linking::Dynamic("/lib64/ld-linux-x86-64.so.2".into());
        assert_eq!(unfit(program(glibc(), false)), None);
        let (why, children_load) = unfit(program(Linking::Static, false)).expect("unfit");
        assert!(why == "/opt/p is a static executable, which loads no library" && children_load, "{why}");
        for linking in [Some(glibc()), None, Some(Linking::Static)] {
            let program = ProgramFile { linking, ..program(Linking::Static, true) };
            let (why, children_load) = unfit(program).expect("unfit");
            assert!(why.contains("setuid, setgid or capabilities") && !children_load, "{why}");
        }
        let musl = unfit(program(Linking::Dynamic("/lib/ld-musl-x86_64.so.1".into()), true)).expect("unfit");
        assert!(musl.0.contains("needs glibc") && !musl.1, "{}", musl.0);
        assert!(unfit(program(Linking::OtherMachine, false)).expect("unfit").0.contains("no 64-bit"));
    }

    /// The owner, the group and the mode of a file.
    fn file_of(uid: u32, gid: u32, mode: u32) -> FileRights {
        FileRights { uid, gid, mode, are_bits_ignored: false, capabilities: Vec::new() }
    }

    #[test]
    fn program_is_secure_if_exec_changes_the_user_the_group_or_the_capabilities() {
        let (user, root) = (Caller { uid: 1000, gid: 100 }, Caller { uid: 0, gid: 0 });
        for (file, of_user, of_root) in [
            (file_of(0, 0, 0o755), false, false),
            (file_of(0, 0, 0o4755), true, false),
            (file_of(1000, 0, 0o4755), false, true),
            (file_of(7, 100, 0o2755), false, true),
            (file_of(7, 0, 0o2755), true, false),
            // Without the right of the group to execute, the bit means locking.
            (file_of(7, 7, 0o2745), false, false),
        ] {
            assert_eq!((file.make_secure(user), file.make_secure(root)), (of_user, of_root), "{file:?}");
            let ignored = FileRights { are_bits_ignored: true, ..file };
            assert!(!ignored.make_secure(user) && !ignored.make_secure(root), "{ignored:?}");
        }
        // The version and the bit of the effective set, then words of the permitted and the inheritable set.
        let capabilities = |first: u32, permitted: u32| FileRights {
            capabilities: [first, permitted, 0, 0, 0].map(u32::to_le_bytes).concat(),
            ..file_of(0, 0, 0o755)
        };
        assert!(capabilities(0x0200_0001, 1 << 13).make_secure(user), "cap_net_raw=ep");
        assert!(capabilities(0x0200_0000, 1 << 13).make_secure(user), "cap_net_raw=p");
        assert!(!capabilities(0x0200_0000, 0).make_secure(user), "no capability");
        assert!(!capabilities(0x0200_0001, 1 << 13).make_secure(root), "root has all");
    }

    #[test]
    fn program_that_cannot_be_read_is_found_if_it_has_rights_of_its_file() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("program");
        fs::write(&path, elf(3, b"/lib64/ld-linux-x86-64.so.2\0")).expect("the folder is ours");
        let find = || ProgramFile::find(path.as_os_str()).expect("a program");
        assert!(!find().is_secure);
        std::os::unix::fs::chown(&path, Some(65534), None).expect("root may");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4711)).expect("root may");
        let are_ignored = FileRights::read(&path).expect("metadata").are_bits_ignored;
        assert_eq!(find().is_secure, !are_ignored);
    }

    #[test]
    fn files_that_are_no_programs_have_no_linking() {
        assert_eq!(linking(b"").expect("read"), None);
        assert_eq!(
            linking(b"echo no program header in this file of more than sixty-four bytes, but text").expect("read"),
            None
        );
        let mut other = elf(1, b"");
        other[4] = 1; // ELFCLASS32
        assert_eq!(linking(&other).expect("read"), Some(Linking::OtherMachine));
        let mut beyond = elf(1, b"");
        beyond[39] = 0xFF; // The table is beyond the end.
        assert!(linking(&beyond).is_err());
        let mut long = elf(3, b"");
        long[100] = 1; // 4 GiB of a path
        assert!(linking(&long).is_err());
    }

    /// A library with one version, `A`.
    fn library() -> Vec<u8> {
        let mut file = vec![0; 64];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[40] = 64; // The table of sections is behind the header.
        file[58] = 64;
        file[60] = 2;
        let mut section = |kind: u32, at: u8, length: u8, link: u8| {
            let header = file.len();
            file.resize(header + 64, 0);
            file[header + 4..header + 8].copy_from_slice(&kind.to_le_bytes());
            (file[header + 24], file[header + 32], file[header + 40]) = (at, length, link);
        };
        section(0x6FFF_FFFD, 192, 28, 1);
        section(3, 220, 3, 0);
        file.extend([0; 12].into_iter().chain(20u32.to_le_bytes()).chain([0; 4])); // The definition: its name is behind it.
        file.extend(1u32.to_le_bytes().into_iter().chain([0; 4]).chain(*b"\0A\0"));
        file
    }

    #[test]
    fn versions_of_a_library_are_read_and_damaged_files_refused() {
        let of = |contents: &[u8]| {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let path = folder.path().join("library");
            fs::write(&path, contents).expect("the folder is ours");
            defined_versions(&File::open(path).expect("it was written"))
        };
        let good = library();
        assert_eq!(of(&good).expect("read"), Some(vec!["A".to_owned()]));
        assert_eq!(of(b"no library").expect("read"), None);
        assert_eq!(of(&elf(1, b"")).expect("read"), Some(Vec::new()));
        for end in 64..good.len() {
            assert!(of(&good[..end]).is_err(), "{end} bytes");
        }
        // Any byte may be wrong: the result is an error or other names.
        for (at, value) in (0..good.len()).flat_map(|at| [(at, 0xFF), (at, 0x01)]) {
            let mut damaged = good.clone();
            damaged[at] = value;
            let _ = of(&damaged);
        }
    }

    #[test]
    fn scripts_links_and_names_lead_to_the_program() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let write = |name: &str, contents: &[u8]| {
            let path = folder.path().join(name);
            fs::write(&path, contents).expect("the folder is ours");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("the file is ours");
            path
        };
        let program = write("program", &elf(3, b"/lib/ld-musl-x86_64.so.1\0"));
        symlink(&program, folder.path().join("link")).expect("the folder is ours");
        let script = write("script", format!("#! {}/link -x\necho\n", folder.path().display()).as_bytes());
        let nested = write("nested", format!("#!{}\n", script.display()).as_bytes());
        let by_env = write("by-env", format!("#!/usr/bin/env -S X=1 {} -u\n", program.display()).as_bytes());
        for path in [&program, &script, &nested, &by_env] {
            let found = ProgramFile::find(path.as_os_str()).expect("a program");
            let musl = Linking::Dynamic("/lib/ld-musl-x86_64.so.1".into());
            assert_eq!((found.linking, found.is_secure), (Some(musl), false), "{}", path.display());
        }
        let endless = write("endless", format!("#!{}/endless\n", folder.path().display()).as_bytes());
        assert_eq!(ProgramFile::find(endless.as_os_str()), None);
        let path = |folders: String| in_path(OsStr::new("program"), Some(folders.into()));
        assert_eq!(path(format!("/nowhere:{}", folder.path().display())), Some(program.clone()));
        fs::set_permissions(&program, fs::Permissions::from_mode(0o644)).expect("the file is ours");
        assert_eq!(path("/nowhere".to_owned()), None);
    }
}
