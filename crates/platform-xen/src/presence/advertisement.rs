//! The contents of the advertisement node: text, so that people can read it with `xenstore-ls`.
//!
//! ```text
//!  isthmus 1 00c0ffee00c0ffee 42 4701…
//!          │ │                │  └ the offer, two digits a byte; missing if there is none
//!          │ │                └ the heartbeat, one more each time
//!          │ └ the incarnation
//!          └ the version
//! ```

/// The maximum size of an offer in bytes.
pub const OFFER_BYTES_MAX: usize = 512;

const PREFIX: &str = "isthmus";
const VERSION: &str = "1";

/// The advertisement of a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advertisement {
    /// The incarnation, drawn when the daemon started. Another incarnation is another daemon, and very likely another domain.
    pub incarnation: u64,
    /// The heartbeat, incremented with each renewal. It wraps to 0.
    pub heartbeat: u32,
    /// The data for the domains that find this one. It does not change within an incarnation.
    pub offer: Vec<u8>,
}

/// Text that is not an advertisement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdvertisementError {
    /// The text is no advertisement, or one of another version.
    #[error("no advertisement, or one of an unknown version")]
    Unknown,
    /// One of the numbers is invalid.
    #[error("an advertisement with an invalid number")]
    Number,
    /// The offer is too long or not hexadecimal.
    #[error("an offer of more than {OFFER_BYTES_MAX} bytes, or not in hexadecimal")]
    Offer,
}

impl Advertisement {
    /// Creates the advertisement before the first renewal.
    pub(super) fn new(incarnation: u64, offer: Vec<u8>) -> Result<Self, AdvertisementError> {
        if offer.len() > OFFER_BYTES_MAX {
            return Err(AdvertisementError::Offer);
        }
        Ok(Self { incarnation, heartbeat: 0, offer })
    }

    pub(super) fn next_heartbeat(&mut self) -> &Self {
        self.heartbeat = self.heartbeat.wrapping_add(1);
        self
    }

    /// Returns the text of the node.
    pub fn emit(&self) -> String {
        let offer: String = self.offer.iter().map(|byte| format!("{byte:02x}")).collect();
        let space = if offer.is_empty() { "" } else { " " };
        format!("{PREFIX} {VERSION} {:016x} {}{space}{offer}", self.incarnation, self.heartbeat)
    }

    /// Parses the text of a node, which another domain wrote.
    pub fn parse(text: &[u8]) -> Result<Self, AdvertisementError> {
        let text = str::from_utf8(text).map_err(|_| AdvertisementError::Unknown)?;
        let mut words = text.split(' ');
        if (words.next(), words.next()) != (Some(PREFIX), Some(VERSION)) {
            return Err(AdvertisementError::Unknown);
        }
        let (incarnation, heartbeat) = words.next().zip(words.next()).ok_or(AdvertisementError::Number)?;
        let (offer, None) = (words.next(), words.next()) else { return Err(AdvertisementError::Unknown) };
        let is_hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if incarnation.len() != 16 || !is_hex(incarnation) || !heartbeat.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(AdvertisementError::Number);
        }
        let incarnation = u64::from_str_radix(incarnation, 16).map_err(|_| AdvertisementError::Number)?;
        let heartbeat = heartbeat.parse().map_err(|_| AdvertisementError::Number)?;
        let offer = offer.map_or(Ok(Vec::new()), |digits| match digits.len() {
            2..=1024 if digits.len() % 2 == 0 && is_hex(digits) => Ok(unhex(digits)),
            _ => Err(AdvertisementError::Offer),
        })?;
        Ok(Self { incarnation, heartbeat, offer })
    }
}

const _: () = assert!(2 * OFFER_BYTES_MAX == 1024);

/// Decodes hexadecimal digits. The caller has checked that there are no other characters.
fn unhex(digits: &str) -> Vec<u8> {
    let value = |digit: u8| if digit.is_ascii_digit() { digit - b'0' } else { digit - b'a' + 10 };
    digits.as_bytes().chunks_exact(2).map(|pair| value(pair[0]) << 4 | value(pair[1])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_advertisement_is_the_text_of_the_specification() {
        let advertisement = Advertisement { incarnation: 0xc0_ffee_00c0_ffee, heartbeat: 42, offer: vec![0x47, 1] };
        assert_eq!(advertisement.emit(), "isthmus 1 00c0ffee00c0ffee 42 4701");
        let without_offer = Advertisement { offer: Vec::new(), ..advertisement };
        assert_eq!(without_offer.emit(), "isthmus 1 00c0ffee00c0ffee 42");
    }

    #[test]
    fn other_texts_are_refused() {
        use AdvertisementError::*;
        let refused = |text: &str| Advertisement::parse(text.as_bytes()).unwrap_err();
        for text in ["", "isthmus", "isthmus 2 00c0ffee00c0ffee 42", "hello 1", "isthmus 1 00c0ffee00c0ffee 42 00 00"] {
            assert_eq!(refused(text), Unknown, "{text:?}");
        }
        for text in [
            "isthmus 1",
            "isthmus 1 0 1",
            "isthmus 1 00C0ffee00c0ffee 42",
            "isthmus 1 00c0ffee00c0ffee -1",
            "isthmus 1 00c0ffee00c0ffee 4294967296",
            "isthmus 1 00c0ffee00c0ffee ",
        ] {
            assert_eq!(refused(text), Number, "{text:?}");
        }
        for offer in ["", "0", "0g", "é0", &"00".repeat(OFFER_BYTES_MAX + 1)] {
            assert_eq!(refused(&format!("isthmus 1 00c0ffee00c0ffee 42 {offer}")), Offer, "{offer:?}");
        }
        assert_eq!(Advertisement::parse(b"isthmus 1 \xff"), Err(Unknown));
    }

    proptest! {
        #[test]
        fn advertisements_round_trip(
            incarnation: u64, heartbeat: u32, offer in prop::collection::vec(any::<u8>(), 0..=OFFER_BYTES_MAX),
        ) {
            let advertisement = Advertisement { incarnation, heartbeat, offer };
            prop_assert_eq!(Advertisement::parse(advertisement.emit().as_bytes()), Ok(advertisement));
        }

        #[test]
        fn no_text_panics(bytes in prop::collection::vec(any::<u8>(), 0..60), rest in "[0-9a-f ]{0,60}") {
            let _ = Advertisement::parse(&bytes);
            if let Ok(advertisement) = Advertisement::parse(format!("isthmus 1 {rest}").as_bytes()) {
                prop_assert_eq!(Advertisement::parse(advertisement.emit().as_bytes()), Ok(advertisement));
            }
        }
    }
}
