//! Every case of the C programs: the kernel repeats its transcript, and the library has the same.

use isthmus_sockets_tests::{Stage, cases, run_case};

/// Compares the transcripts of a stage with those of the kernel.
#[track_caller]
fn compare(stage: &Stage, program: &str, case: &str) {
    for swapped in [false, true] {
        let expected = run_case(&Stage::Kernel, program, case, swapped);
        let got = run_case(stage, program, case, swapped);
        assert_eq!(got, expected, "{program} {case}, swapped: {swapped}; right: the kernel's transcript");
    }
}

fn kernel(program: &str, case: &str) {
    compare(&Stage::Kernel, program, case);
}

fn library(program: &str, case: &str) {
    if let Some(stage) = Stage::library() {
        compare(&stage, program, case);
    }
}

/// Modules of tests for a program: both stages of each case, and a test that finds none missing.
macro_rules! transcripts {
    ($program:ident: $($case:ident)*) => {
        mod $program {
            mod kernel_repeats {
                $(#[test]
                fn $case() {
                    super::super::kernel(stringify!($program), stringify!($case));
                })*
            }

            mod library_equals_kernel {
                $(#[test]
                fn $case() {
                    super::super::library(stringify!($program), stringify!($case));
                })*
            }

            #[test]
            fn program_has_no_unlisted_cases() {
                let names: Vec<String> = super::cases(stringify!($program)).into_iter().map(|(name, _)| name).collect();
                assert_eq!(names, [$(stringify!($case)),*]);
            }
        }
    };
}

transcripts!(endings: closed closed_before_a_sender closed_after_data closed_with_unread closed_with_unread_after_data
             closed_while_idle reset_while_idle half_closed read_after_fin
             reading_shut_down both_shut_down reset reset_with_data error_of_the_socket error_after_fork sigpipe events_of_input
             events_with_rdhup events_of_output killed killed_with_unread killed_after_data exited became_another_program
             killed_before_a_reader closed_before_a_reader killed_before_a_set killed_before_a_select
             killed_before_a_writer killed_before_a_full_sender killed_before_writes exited_before_writes
             killed_before_writes_alone killed_before_writers own_wait_ended);
transcripts!(calls: peek wait_for_all never_wait full unread vectors vectors_of_messages nothing timeouts timeout_within_all
             copies interrupted forked handed_to_child handed_to_child_of_threads inherited_by_a_shell asked_by_a_shell
             spawned passed urgent stdio files spliced_later sets changing_set select);
transcripts!(kinds: set_waited_on_before set_before_connect set_with_gap unarmed_end closed_copy_in_set
             set_of_threads_once set_of_threads_edge set_of_owners room_by_edges
             set_as_descriptor child_for_each fork_beside_threads close_beside_reader connected_again closed_unseen cancelled full_times
             dropped both_send_first other_calls other_children numbers_taken commands standard_files);
transcripts!(edges: unread_behind_others reads_what_is_counted close_beside_writer shutdown_beside_writer end_beside_writer
             only_close_beside_writer limited_write odd_numbers odd_files what_is_left);

transcripts!(signals: handler_writes handler_exchanges interrupted_waits bad_memory small_stack high_number no_descriptors_left closed_in_handler jumped_out polled_past_end left_unread left_unread_beside);

/// `docs/reference/sockets.md` lists the cases. `UPDATE=1` writes them.
#[test]
fn page_of_users_lists_the_cases() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/sockets.md");
    let page = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let row = |(name, what): (String, String)| format!("| `{name}` | {what} |\n");
    let programs = ["calls", "endings", "kinds", "edges", "signals"];
    let rows: String = programs.into_iter().flat_map(cases).map(row).collect();
    let (begin, end) = ("<!-- table cases -->\n", "\n<!-- end -->");
    let ((before, rest), table) = (page.split_once(begin).expect("the page has the table"), rows);
    let (_, after) = rest.split_once(end).expect("the table ends");
    let printed = format!("{before}{begin}\n| case | what one program does |\n| --- | --- |\n{table}{end}{after}");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, &printed).unwrap_or_else(|error| panic!("{path}: {error}"));
    } else {
        assert!(page == printed, "docs/reference/sockets.md does not list the cases: run with UPDATE=1");
    }
}
