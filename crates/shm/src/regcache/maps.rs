//! Queries the kernel for the mapping at an address: `PROCMAP_QUERY` (Linux 6.11) on `/proc/self/maps`.
//!
//! The result is exact: start, end, rights, file and offset of the mapping at that very address, in about a
//! microsecond whatever the size. Nothing else is exact and cheap: `mincore` and `PAGEMAP_SCAN` cannot tell one file
//! from another, and reading `maps` as text grows with the number of mappings.
//!
//! On kernels without the request, that text is read: it has the same content, slowly. That is good enough for what is done
//! once per region, and for regions of guests, because the guest's driver reports at each use where they are mapped.

use std::fs::File;
use std::io::{Read, Seek};
use std::ops::Range;

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

use super::ColdReason;

/// The identity of a file, as the kernel tells files apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId {
    major: u32,
    minor: u32,
    inode: u64,
}

impl FileId {
    pub(super) fn of(stat: &rustix::fs::Stat) -> Self {
        Self { major: rustix::fs::major(stat.st_dev), minor: rustix::fs::minor(stat.st_dev), inode: stat.st_ino }
    }
}

/// One mapping of this process.
#[derive(Clone, Debug)]
pub(super) struct Vma {
    pub(super) range: Range<usize>,
    pub(super) readable: bool,
    pub(super) writable: bool,
    pub(super) executable: bool,
    pub(super) shared: bool,
    pub(super) page_size: usize,
    /// Offset of `range.start` in the file.
    pub(super) offset: u64,
    /// None for anonymous memory.
    pub(super) file: Option<FileId>,
}

/// The open `/proc/self/maps` of this address space. A child's copy of it would still describe the parent.
#[derive(Debug)]
pub(super) struct Maps {
    file: File,
    /// The kernel does not know the request.
    by_text: bool,
}

impl Maps {
    /// Opens the file and queries once, so that a kernel without the request is detected here.
    pub(super) fn open() -> Result<Self, ColdReason> {
        let mut maps = Self { file: open("/proc/self/maps")?, by_text: false };
        let known = std::ptr::from_ref(&maps).addr();
        if let Err(reason) = maps.at(known) {
            maps.by_text = reason == ColdReason::NoProcmapQuery;
            maps.at(known)?;
        }
        Ok(maps)
    }

    /// Returns this object if it can be queried at each use, that is, without reading the text.
    pub(super) fn require_query(&self) -> Result<&Self, ColdReason> {
        if self.by_text { Err(ColdReason::NoProcmapQuery) } else { Ok(self) }
    }

    /// The mapping at `address`, if there is one.
    pub(super) fn at(&self, address: usize) -> Result<Option<Vma>, ColdReason> {
        self.query(address, 0, &mut [])
    }

    /// The first mapping of a file at `address` or above.
    pub(super) fn file_from(&self, address: usize) -> Result<Option<Vma>, ColdReason> {
        self.query(address, COVERING_OR_NEXT | FILE_BACKED, &mut [])
    }

    /// The name which `/proc/self/maps` shows for the mapping at `address`: empty for plain memory.
    pub(super) fn name_at<'a>(&self, address: usize, name: &'a mut Name) -> Result<&'a [u8], ColdReason> {
        *name = [0; NAME_MAX];
        self.query(address, 0, name)?;
        Ok(name.split(|&byte| byte == 0).next().unwrap_or_default())
    }

    /// Calls `each` for every mapping of the kernel's own files, memfds among them, with the name of the file. Allocates nothing.
    pub(super) fn for_each_named(&self, mut each: impl FnMut(&str, &Vma)) -> Result<(), ColdReason> {
        let (mut at, mut room) = (0, [0; NAME_MAX]);
        while let Some(vma) = self.file_from(at)? {
            at = vma.range.end;
            // Such files have no device; only of these is the name asked.
            if vma.file.is_some_and(|file| file.major == 0)
                && let Ok(name) = self.name_at(vma.range.start, &mut room)
                && let Ok(name) = std::str::from_utf8(name)
            {
                each(name, &vma);
            }
        }
        Ok(())
    }

    /// Returns the mappings that cover all of `range`, in order, or None if a part of it is not mapped.
    pub(super) fn covering(&self, range: &Range<usize>) -> Result<Option<Vec<Vma>>, ColdReason> {
        let mut found = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let Some(vma) = self.at(at)? else { return Ok(None) };
            at = vma.range.end;
            found.push(vma);
        }
        Ok(Some(found))
    }

    /// Returns true if `range` shows exactly the bytes of `file` from `offset` on, shared, and may be read.
    pub(super) fn is_mapped_as(&self, range: &Range<usize>, file: FileId, offset: u64) -> Result<bool, ColdReason> {
        let mut at = range.start;
        while at < range.end {
            let Some(vma) = self.at(at)? else { return Ok(false) };
            let expected = offset + (at - range.start) as u64;
            let shown = vma.offset + (at - vma.range.start) as u64;
            if !vma.shared || !vma.readable || vma.file != Some(file) || shown != expected {
                return Ok(false);
            }
            at = vma.range.end;
        }
        Ok(true)
    }

    fn query(&self, address: usize, flags: u64, name: &mut [u8]) -> Result<Option<Vma>, ColdReason> {
        if self.by_text {
            return self.read(address, flags, name);
        }
        let mut query = ProcmapQuery {
            size: size_of::<ProcmapQuery>() as u64,
            query_flags: flags,
            query_addr: address as u64,
            vma_name_size: name.len() as u32,
            vma_name_addr: if name.is_empty() { 0 } else { name.as_mut_ptr().expose_provenance() as u64 },
            ..ProcmapQuery::default()
        };
        // SAFETY: the opcode is PROCMAP_QUERY, and its argument is this structure; `size` in it says how large it is.
        // The kernel writes at most `vma_name_size` bytes to `vma_name_addr`, which is `name`, borrowed for the call;
        // the build id is not requested.
        let answer = unsafe { ioctl(&self.file, Updater::<PROCMAP_QUERY, _>::new(&mut query)) };
        match answer {
            Ok(()) => Ok(Some(query.vma())),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::NOTTY | Errno::INVAL | Errno::NOSYS) => Err(ColdReason::NoProcmapQuery),
            // The name alone did not fit: whatever it is, it is none of the short names that matter to us.
            Err(Errno::NAMETOOLONG) => Err(ColdReason::NotAnonymous),
            Err(_) => Err(ColdReason::NoProc),
        }
    }

    /// Answers the query from the text. Allocates nothing.
    fn read(&self, address: usize, flags: u64, name: &mut [u8]) -> Result<Option<Vma>, ColdReason> {
        (&self.file).rewind().map_err(|_| ColdReason::NoProc)?;
        let mut lines = LineReader { from: &self.file, buffer: [0; LINE_MAX], start: 0, end: 0 };
        while let Some(line) = lines.next()? {
            let (vma, shown) = parse(line).ok_or(ColdReason::NoProc)?;
            if vma.range.end <= address || flags & FILE_BACKED != 0 && vma.file.is_none() {
                continue;
            }
            if vma.range.start > address && flags & COVERING_OR_NEXT == 0 {
                return Ok(None);
            }
            if !name.is_empty() {
                // As above.
                name.get_mut(..shown.len()).ok_or(ColdReason::NotAnonymous)?.copy_from_slice(shown);
            }
            return Ok(Some(vma));
        }
        Ok(None)
    }
}

/// Longest line: a path and some numbers.
const LINE_MAX: usize = 4096 + 256;

/// The lines of a file.
struct LineReader<'a> {
    from: &'a File,
    buffer: [u8; LINE_MAX],
    /// The range of `buffer` that was read and not yet taken.
    start: usize,
    end: usize,
}

impl LineReader<'_> {
    fn next(&mut self) -> Result<Option<&[u8]>, ColdReason> {
        loop {
            let read = &self.buffer[self.start..self.end];
            if let Some(len) = read.iter().position(|&byte| byte == b'\n') {
                let line = self.start..self.start + len;
                self.start = line.end + 1;
                return Ok(Some(&self.buffer[line]));
            }
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            match self.from.read(&mut self.buffer[self.end..]) {
                Ok(0) => return if self.end == 0 { Ok(None) } else { Err(ColdReason::NoProc) },
                Ok(bytes) => self.end += bytes,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return Err(ColdReason::NoProc),
            }
        }
    }
}

/// A line such as `7f0000000000-7f0000001000 rw-s 00000000 00:01 1234   /memfd:x (deleted)`, and the name in it.
fn parse(line: &[u8]) -> Option<(Vma, &[u8])> {
    let mut words = line.splitn(6, |&byte| byte == b' ');
    let mut word = || std::str::from_utf8(words.next()?).ok();
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = word()?.split_once('-')?;
    let (rights, offset) = (word()?.as_bytes(), hex(word()?)?);
    let (major, minor) = word()?.split_once(':')?;
    let inode = word()?.parse().ok()?;
    let file = FileId { major: hex(major)? as u32, minor: hex(minor)? as u32, inode };
    let has = |at: usize, right: u8| rights.get(at) == Some(&right);
    let vma = Vma {
        range: hex(start)? as usize..hex(end)? as usize,
        readable: has(0, b'r'),
        writable: has(1, b'w'),
        executable: has(2, b'x'),
        shared: has(3, b's'),
        page_size: rustix::param::page_size(), // Huge pages are a file's here, which is told by its name.
        offset,
        file: (inode != 0).then_some(file),
    };
    Some((vma, words.next().unwrap_or_default().trim_ascii_start()))
}

/// Opens a file of `/proc/self`.
pub(super) fn open(path: &str) -> Result<File, ColdReason> {
    File::open(path).map_err(|error| match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::MFILE | Errno::NFILE) => ColdReason::DescriptorLimit,
        _ => ColdReason::NoProc,
    })
}

const PROCMAP_QUERY: Opcode = opcode::read_write::<ProcmapQuery>(b'f', 17);
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;
const EXECUTABLE: u64 = 4;
const SHARED: u64 = 8;
const COVERING_OR_NEXT: u64 = 0x10;
const FILE_BACKED: u64 = 0x20;
const NAME_MAX: usize = 256;

/// Room for a name.
pub(super) type Name = [u8; NAME_MAX];

/// `struct procmap_query` of `linux/fs.h`.
#[derive(Default)]
#[repr(C)]
struct ProcmapQuery {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

const _: () = assert!(size_of::<ProcmapQuery>() == 104);
const _: () = assert!(usize::BITS == 64, "addresses and file offsets are used as one size");

impl ProcmapQuery {
    fn vma(&self) -> Vma {
        let file = FileId { major: self.dev_major, minor: self.dev_minor, inode: self.inode };
        Vma {
            range: self.vma_start as usize..self.vma_end as usize,
            readable: self.vma_flags & READABLE != 0,
            writable: self.vma_flags & WRITABLE != 0,
            executable: self.vma_flags & EXECUTABLE != 0,
            shared: self.vma_flags & SHARED != 0,
            page_size: self.vma_page_size as usize,
            offset: self.vma_offset,
            file: (self.inode != 0).then_some(file),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel")]
    fn maps_text_agrees_with_procmap_query() {
        let maps = Maps::open().unwrap();
        let text = Maps { file: open("/proc/self/maps").unwrap(), by_text: true };
        assert_eq!(text.require_query().err(), Some(ColdReason::NoProcmapQuery));
        let Ok(maps) = maps.require_query() else { return }; // Nothing to compare it with.
        let (mut at, mut seen) = (0, 0);
        let told = |vma: Option<Vma>| vma.map(|vma| format!("{vma:?}"));
        while let Some(vma) = maps.file_from(at).unwrap() {
            assert_eq!(told(text.file_from(at).unwrap()), told(Some(vma.clone())));
            let [mut ours, mut theirs] = [[0; NAME_MAX]; 2];
            let at_start = |maps: &Maps, name| maps.name_at(vma.range.start, name).map(<[u8]>::to_vec);
            assert_eq!(at_start(&text, &mut ours), at_start(maps, &mut theirs));
            (at, seen) = (vma.range.end, seen + 1);
        }
        assert!(seen > 2, "this program is a file");
        let here = std::ptr::from_ref(&seen).addr();
        for address in [0, here, usize::MAX / 4] {
            assert_eq!(told(text.at(address).unwrap()), told(maps.at(address).unwrap()), "{address:#x}");
        }
    }

    #[test]
    fn parse_rejects_malformed_maps_lines() {
        let line = b"7f00-8f00 rw-s 00001000 00:1c 77                 /isthmus-home (deleted)";
        let (vma, name) = parse(line).unwrap();
        assert_eq!((vma.range, vma.offset, name), (0x7f00..0x8f00, 0x1000, &b"/isthmus-home (deleted)"[..]));
        assert_eq!(vma.file, Some(FileId { major: 0, minor: 0x1c, inode: 77 }));
        assert!(vma.shared && vma.readable && vma.writable && !vma.executable);
        for line in ["", "7f00", "7f00-8f00 rw-p", "7f00-x rw-p 0 0:0 0", "7f00-8f00 rw-p 0 0:0 x"] {
            assert!(parse(line.as_bytes()).is_none(), "{line}");
        }
    }
}
