//! perftest: two containers. Its tables say how many iterations were done; it checks no data.

use isthmus_verbs_tests::{Pair, Stage};

/// A row of a table: the size of a message, and the number of iterations.
type Row = (u64, u64);

/// The rows of the table. Its first two columns are the same in each program.
fn rows(lines: &[String]) -> Vec<Row> {
    let table = lines.iter().skip_while(|line| !line.trim_start().starts_with("#bytes")).skip(1);
    let row = |line: &String| {
        let mut words = line.split_whitespace();
        Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    };
    table.map_while(row).collect()
}

/// Runs a program, and asserts that the client's table has these rows. `-F` keeps it from judging the frequency of the processor.
#[track_caller]
fn run(stage: &Stage, program: &str, words: &str, expected: &[Row]) {
    let words: Vec<&str> = ["-F"].into_iter().chain(words.split_whitespace()).collect();
    let pair = Pair::run(stage, &format!("/usr/bin/{program}"), &words, &[]);
    let [client, _] = pair.expect_success();
    assert_eq!(rows(client), expected, "{program} {words:?}: {client:#?}");
}

/// The rows of `-a`: each power of two from 2 to the largest.
fn all_sizes(log2_max: u32, count: u64) -> Vec<Row> {
    (1..=log2_max).map(|log2| (1 << log2, count)).collect()
}

#[test]
fn send_latency_of_each_kind_is_measured() {
    let Some(stage) = Stage::new() else { return };
    for kind in ["RC", "UC", "UD"] {
        for size in [1, 2, 64, 4096] {
            run(&stage, "ib_send_lat", &format!("-c {kind} -s {size} -n 100"), &[(size, 100)]);
        }
    }
    run(&stage, "ib_send_lat", "-c RC -s 65536 -n 100 -m 1024", &[(65536, 100)]);
    run(&stage, "ib_send_lat", "-c UC -s 1048576 -n 20", &[(1 << 20, 20)]);
    run(&stage, "ib_send_lat", "-c RC -s 128 -n 100 -I 128", &[(128, 100)]);
    run(&stage, "ib_send_lat", "-c RC -s 128 -n 100 -I 0 -r 16", &[(128, 100)]);
}

#[test]
fn send_latency_of_all_sizes_is_measured() {
    let Some(stage) = Stage::new() else { return };
    run(&stage, "ib_send_lat", "-c RC -a -n 10", &all_sizes(23, 10));
    run(&stage, "ib_send_lat", "-c UD -a -n 10", &all_sizes(12, 10));
}

#[test]
fn send_bandwidth_of_each_kind_is_measured() {
    let Some(stage) = Stage::new() else { return };
    for kind in ["RC", "UC", "UD"] {
        run(&stage, "ib_send_bw", &format!("-c {kind} -s 2 -n 1000"), &[(2, 1000)]);
        run(&stage, "ib_send_bw", &format!("-c {kind} -s 4096 -n 1000"), &[(4096, 1000)]);
    }
    run(&stage, "ib_send_bw", "-c RC -s 65536 -n 500 -m 512", &[(65536, 500)]);
    run(&stage, "ib_send_bw", "-c RC -s 1048576 -n 50", &[(1 << 20, 50)]);
}

#[test]
fn send_bandwidth_of_all_sizes_is_measured() {
    let Some(stage) = Stage::new() else { return };
    run(&stage, "ib_send_bw", "-c RC -a -n 20", &all_sizes(23, 20));
}

#[test]
fn send_bandwidth_is_measured_with_lists_depths_and_several_queue_pairs() {
    let Some(stage) = Stage::new() else { return };
    run(&stage, "ib_send_bw", "-c RC -s 4096 -n 200 -q 8", &[(4096, 1600)]);
    run(&stage, "ib_send_bw", "-c RC -s 8 -n 3200 -l 32", &[(8, 3200)]);
    run(&stage, "ib_send_bw", "-c RC -s 64 -n 1000 --inline_size 64", &[(64, 1000)]);
    run(&stage, "ib_send_bw", "-c RC -s 1024 -n 1000 -t 8 -r 16", &[(1024, 1000)]);
    run(&stage, "ib_send_bw", "-c UC -s 2048 -n 1000 -t 1 -r 512", &[(2048, 1000)]);
    run(&stage, "ib_send_bw", "-c RC -s 65536 -n 200 -b", &[(65536, 200)]);
    run(&stage, "ib_send_bw", "-c UD -s 1024 -n 1000 -b", &[(1024, 1000)]);
}

#[test]
fn send_is_measured_with_events() {
    let Some(stage) = Stage::new() else { return };
    for kind in ["RC", "UC", "UD"] {
        run(&stage, "ib_send_lat", &format!("-e -c {kind} -s 64 -n 100"), &[(64, 100)]);
        run(&stage, "ib_send_bw", &format!("-e -c {kind} -s 1024 -n 1000"), &[(1024, 1000)]);
    }
}

#[test]
fn one_sided_latency_is_measured() {
    let Some(stage) = Stage::new() else { return };
    for size in [2, 64, 4096, 65536] {
        run(&stage, "ib_write_lat", &format!("-s {size} -n 100"), &[(size, 100)]);
        run(&stage, "ib_read_lat", &format!("-s {size} -n 100"), &[(size, 100)]);
    }
    run(&stage, "ib_write_lat", "-c UC -s 64 -n 100", &[(64, 100)]);
    run(&stage, "ib_write_lat", "-a -n 10", &all_sizes(23, 10));
    run(&stage, "ib_atomic_lat", "-A FETCH_AND_ADD -n 100", &[(8, 100)]);
    run(&stage, "ib_atomic_lat", "-A CMP_AND_SWAP -n 100", &[(8, 100)]);
}

#[test]
fn one_sided_bandwidth_is_measured() {
    let Some(stage) = Stage::new() else { return };
    for size in [2, 4096, 65536, 1 << 20] {
        run(&stage, "ib_write_bw", &format!("-s {size} -n 200"), &[(size, 200)]);
        run(&stage, "ib_read_bw", &format!("-s {size} -n 200"), &[(size, 200)]);
    }
    run(&stage, "ib_write_bw", "-s 4096 -n 200 -q 8", &[(4096, 1600)]);
    run(&stage, "ib_write_bw", "-s 8 -n 3200 -l 32", &[(8, 3200)]);
    run(&stage, "ib_write_bw", "-s 65536 -n 200 -b", &[(65536, 200)]);
    run(&stage, "ib_write_bw", "-c UC -s 4096 -n 200", &[(4096, 200)]);
    run(&stage, "ib_read_bw", "-e -s 4096 -n 200", &[(4096, 200)]);
    run(&stage, "ib_atomic_bw", "-n 1000", &[(8, 1000)]);
}
