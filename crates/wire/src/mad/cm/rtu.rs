//! RTU, "ready to use": the initiator has the reply (IBTA vol. 1, 12.6.9).

/// The attribute of the datagram.
pub const ATTRIBUTE: u16 = 0x14;

ids_and_data!("RTU");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let message = Repr { local_id: 5, remote_id: 9, private_data: b"hi" };
        assert_message!(message, [(0, "00000005 00000009 6869 00")]);
        assert_eq!(std::format!("{message}"), "RTU 0x5 > 0x9");
    }
}
