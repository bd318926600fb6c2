//! Prices, printed and not judged: `cargo test --release -p isthmus-shm --test regcache_cost -- --ignored --nocapture`.
#![cfg(not(miri))] // No memory files, mappings of them, or forks there.
#![allow(clippy::unwrap_used, reason = "tests")]

mod regcache_common;

use std::time::Instant;

use isthmus_shm::regcache::{PeerRegion, Prepared, RegistrationCache};
use regcache_common::*;

#[test]
#[ignore = "a measurement"]
fn prices() {
    println!(
        "{:>9} {:>12} {:>14} {:>14} {:>12} {:>12} {:>12}",
        "KiB", "lookup ns", "migrate µs/MiB", "restore µs/MiB", "grant+map µs", "copy GB/s", "memcpy GB/s"
    );
    for kib in [64, 256, 1024, 4096, 16384] {
        let len = kib << 10;
        let pages = Pages::filled(len, 1);
        let mut to = vec![0; len];
        let mut rows: Vec<[f64; 6]> = (0..9).map(|_| row(&pages, &mut to)).collect();
        let median = |column: usize, rows: &mut [[f64; 6]]| {
            rows.sort_by(|a, b| a[column].total_cmp(&b[column]));
            rows[rows.len() / 2][column]
        };
        let [lookup, migrate, restore, map, copy, memcpy] = std::array::from_fn(|column| median(column, &mut rows));
        println!("{kib:>9} {lookup:>12.0} {migrate:>14.0} {restore:>14.0} {map:>12.1} {copy:>12.1} {memcpy:>12.1}");
    }
}

fn row(pages: &Pages, to: &mut [u8]) -> [f64; 6] {
    const TIMES: u32 = 200;
    let (len, mib) = (pages.len, pages.len as f64 / MIB as f64);
    let cache = RegistrationCache::new(config());
    drop(prepare(&cache, pages.bytes()));
    let began = Instant::now();
    let Prepared::Warm(region) = prepare(&cache, pages.bytes()) else { panic!("cold") };
    let migrate = began.elapsed();
    let began = Instant::now();
    (0..TIMES).for_each(|_| drop(prepare(&cache, pages.bytes())));
    let lookup = began.elapsed() / TIMES;
    let began = Instant::now();
    let grant = cache.grant(region.region).unwrap();
    let theirs = PeerRegion::map(&grant.fd, grant.start, grant.len, 1 << 30).unwrap();
    let map = began.elapsed();
    let began = Instant::now();
    (0..20).for_each(|_| theirs.copy_out(region.offset, to).unwrap());
    let copy = began.elapsed() / 20;
    let began = Instant::now();
    (0..20).for_each(|_| std::hint::black_box(&mut *to).copy_from_slice(std::hint::black_box(pages.bytes())));
    let memcpy = began.elapsed() / 20;
    drop(region);
    let began = Instant::now();
    drop(cache);
    let restore = began.elapsed();
    // Private pages of a region again become plain ones.
    let copied = pages.bytes().to_vec();
    let flags = rustix::mm::MapFlags::PRIVATE | rustix::mm::MapFlags::FIXED;
    let rights = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
    // SAFETY: within our own reservation.
    unsafe {
        rustix::mm::mmap_anonymous(pages.start.cast(), len, rights, flags).unwrap();
        std::ptr::copy_nonoverlapping(copied.as_ptr(), pages.start, len);
    }
    let gigabytes = |time: std::time::Duration| len as f64 / time.as_nanos() as f64;
    let micros = |time: std::time::Duration| time.as_nanos() as f64 / 1e3;
    [
        lookup.as_nanos() as f64,
        micros(migrate) / mib,
        micros(restore) / mib,
        micros(map),
        gigabytes(copy),
        gigabytes(memcpy),
    ]
}
