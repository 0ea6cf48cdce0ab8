import AppStore

/// How much octets look like an app receipt. Nothing is verified: the look tells several readings of one text apart.
/// Linear in the octets.
enum ReceiptLook: Int, Comparable {
    /// Not the octets of a receipt.
    case other
    /// The beginning of PKCS#7, or of a receipt of iOS 6.
    case beginning
    /// Beginning and end fit each other.
    case complete
    /// PKCS#7 that can be taken apart.
    case readable

    /// The first octet of PKCS#7.
    static let sequence: UInt8 = 0x30

    init(_ octets: [UInt8]) {
        switch octets.first {
        case Self.sequence:
            let look = Self.ofSequence(octets)
            self = look == .complete && (try? SignedReceipt(octets)) != nil ? .readable : look
        case UInt8(ascii: "{"): self = Self.ofPropertyList(octets)
        default: self = .other
        }
    }

    static func < (one: ReceiptLook, other: ReceiptLook) -> Bool { one.rawValue < other.rawValue }

    /// By the length that the sequence states (ITU-T X.690, 8.1.3).
    private static func ofSequence(_ octets: [UInt8]) -> ReceiptLook {
        guard octets.count > 2 else { return .other }
        switch octets[1] {
        case 0x80: return octets.suffix(2).allSatisfy { $0 == 0 } ? .complete : .beginning
        case 0..<0x80: return 2 + Int(octets[1]) == octets.count ? .complete : .other
        case 0x81...0x84:
            let count = Int(octets[1] & 0x7F)
            let length = octets.dropFirst(2).prefix(count).reduce(0) { $0 << 8 | Int($1) }
            return 2 + count + length == octets.count ? .complete : .beginning
        default: return .other
        }
    }

    /// `{ "key" = …`: an old-style property list, and no JSON.
    private static func ofPropertyList(_ octets: [UInt8]) -> ReceiptLook {
        let isSpace = { (byte: UInt8) in byte == 0x20 || (0x09...0x0D).contains(byte) }
        var rest = octets.dropFirst().drop(while: isSpace)
        guard rest.popFirst() == UInt8(ascii: "\"") else { return .other }
        rest = rest.drop { $0 != UInt8(ascii: "\"") }.dropFirst().drop(while: isSpace)
        guard rest.first == UInt8(ascii: "=") else { return .other }
        return octets.last { !isSpace($0) } == UInt8(ascii: "}") ? .complete : .beginning
    }
}
