//! The page for users states the limits of the adapter.

use isthmus_layout::verbs::{BLOCK_NUMBERS, BLOCKS_MAX};
use isthmus_verbs::limits;

const PAGE: &str = include_str!("../../../docs/reference/verbs.md");

/// Formats a number with commas, as the page does.
fn with_commas(number: usize) -> String {
    match number {
        0..=999 => number.to_string(),
        _ => format!("{},{:03}", with_commas(number / 1000), number % 1000),
    }
}

/// The second and the third cell of the row of the table of limits that begins with a name.
fn row(name: &str) -> (&'static str, &'static str) {
    let row = PAGE.lines().find(|line| line.starts_with(&format!("| {name}"))).expect("a row of the page");
    let mut cells = row.trim_matches('|').split('|').map(str::trim).skip(1);
    (cells.next().expect("a value"), cells.next().expect("a third cell"))
}

#[test]
fn page_has_the_limits_of_the_adapter() {
    let numbers = BLOCK_NUMBERS as usize * BLOCKS_MAX;
    for (name, value, enforced) in [
        ("`max_qp_wr`, `max_srq_wr`", with_commas(limits::REQUESTS_MAX as usize), "yes".to_owned()),
        ("`max_sge`", limits::SGES_MAX.to_string(), "yes".to_owned()),
        ("`max_inline_data`", format!("{} bytes", with_commas(limits::INLINE_BYTES_MAX as usize)), "yes".to_owned()),
        ("`max_cqe`", with_commas(limits::COMPLETIONS_MAX as usize), "yes".to_owned()),
        ("`max_msg_sz`", format!("{} GiB", limits::MESSAGE_BYTES_MAX >> 30), "yes".to_owned()),
        ("datagram", format!("{} bytes", with_commas(limits::DATAGRAM_BYTES_MAX as usize)), "yes".to_owned()),
        ("`max_qp_rd_atom`", limits::READS_MAX.to_string(), "yes".to_owned()),
        ("`max_pd`", with_commas(limits::OBJECTS_MAX), "yes".to_owned()),
        ("`max_qp` ", format!("{} ¹", with_commas(numbers)), "yes".to_owned()),
        ("`max_mr`", with_commas(limits::OBJECTS_MAX), "yes".to_owned()),
    ] {
        assert_eq!(row(name), (value.as_str(), enforced.as_str()), "{name}");
    }
}
