//! DREP: the answer to a DREQ (IBTA vol. 1, 12.6.11).

/// The attribute of the datagram.
pub const ATTRIBUTE: u16 = 0x16;

ids_and_data!("DREP");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let message = Repr { local_id: 5, remote_id: 9, private_data: b"hi" };
        assert_message!(message, [(0, "00000005 00000009 6869 00")]);
        assert_eq!(std::format!("{message}"), "DREP 0x5 > 0x9");
    }
}
