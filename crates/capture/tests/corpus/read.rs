//! Reads arbitrary bytes as the stream of a capture: here with the corpus, and by the fuzz target.

use isthmus_capture::pcapng::{WriteError, Writer};
use isthmus_capture::stream::{CaptureMessage, CaptureReader, MESSAGE_BYTES_MAX, ReadError, emit, parse};

/// Message after message; each says the same again when it is emitted. Answers their kinds, by the fifth byte of each.
pub(crate) fn messages(stream: &[u8]) -> Vec<u8> {
    let (mut rest, mut kinds) = (stream, Vec::new());
    while let Ok(Some((message, bytes))) = parse(rest) {
        assert!(bytes <= MESSAGE_BYTES_MAX && bytes <= rest.len());
        let mut again = Vec::new();
        emit(&message, &mut again);
        // A text that is not fit to be shown does not come back, but as it would be shown.
        if !matches!(message, CaptureMessage::Interface(_)) {
            assert_eq!(again, &rest[..bytes]);
        }
        assert_eq!(parse(&again), Ok(Some((message, again.len()))));
        kinds.push(rest[4]);
        rest = &rest[bytes..];
    }
    kinds
}

/// Reads the stream into a file, as a program does.
pub(crate) fn file(stream: &[u8]) {
    let mut reader = CaptureReader::new(stream);
    let Ok(mut file) = Writer::new(Vec::new(), &[]) else { panic!("memory takes everything") };
    let mut told = Vec::new();
    loop {
        let written = match reader.message() {
            Ok(Some(CaptureMessage::Interface(interface))) => file.add(&interface).map(drop),
            Ok(Some(CaptureMessage::Frame(record))) => file.write(&record),
            Ok(Some(CaptureMessage::Statistics(statistics))) => {
                told.push(statistics);
                Ok(())
            }
            Ok(Some(other)) => panic!("{other:?} between the beginning and the end"),
            Ok(None) | Err(ReadError::Truncated | ReadError::Malformed(_)) => break,
            Err(ReadError::Io(error)) => panic!("{error} from memory"),
        };
        assert!(matches!(written, Ok(()) | Err(WriteError::NoInterface(..) | WriteError::TooManyInterfaces)));
    }
    match file.finish(&told) {
        Ok(file) => assert_eq!(file.len() % 4, 0),
        Err(error) => assert!(matches!(error, WriteError::NoInterface(..)), "{error}"),
    }
}
