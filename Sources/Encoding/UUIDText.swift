public import Foundation

/// Foundation's `uuidString` and `init(uuidString:)` go through printf and scanf: half a microsecond each where these
/// take a tenth, and every receipt has half a dozen ids written and read.
extension UUID {
    /// 36 characters, lower case (RFC 9562, 4).
    public var text: String {
        withUnsafeBytes(of: uuid) { bytes in
            String(unsafeUninitializedCapacity: 36) { text in
                var place = 0
                for (index, byte) in bytes.enumerated() {
                    if Self.hasDash(before: index) {
                        text[place] = UInt8(ascii: "-")
                        place += 1
                    }
                    text[place] = Self.digit(byte >> 4)
                    text[place + 1] = Self.digit(byte & 0xF)
                    place += 2
                }
                return place
            }
        }
    }

    /// Nil for anything but what ``text`` writes.
    public init?(text: ArraySlice<UInt8>) {
        guard text.count == 36 else { return nil }
        var uuid: uuid_t = (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
        let isValid = text.withUnsafeBufferPointer { text in
            withUnsafeMutableBytes(of: &uuid) { bytes in
                var place = 0
                for index in bytes.indices {
                    if Self.hasDash(before: index) {
                        guard text[place] == UInt8(ascii: "-") else { return false }
                        place += 1
                    }
                    guard let high = Self.value(text[place]), let low = Self.value(text[place + 1]) else {
                        return false
                    }
                    bytes[index] = high << 4 | low
                    place += 2
                }
                return true
            }
        }
        guard isValid else { return nil }
        self.init(uuid: uuid)
    }

    private static func hasDash(before byte: Int) -> Bool { byte == 4 || byte == 6 || byte == 8 || byte == 10 }

    private static func digit(_ value: UInt8) -> UInt8 {
        value < 10 ? UInt8(ascii: "0") + value : UInt8(ascii: "a") + value - 10
    }

    private static func value(_ digit: UInt8) -> UInt8? {
        switch digit {
        case UInt8(ascii: "0")...UInt8(ascii: "9"): digit - UInt8(ascii: "0")
        case UInt8(ascii: "a")...UInt8(ascii: "f"): digit - UInt8(ascii: "a") + 10
        default: nil
        }
    }
}
