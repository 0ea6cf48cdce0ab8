import Encoding

/// An iOS 6 style receipt of one transaction (`SKPaymentTransaction.transactionReceipt`): an old-style property list.
///
/// Nothing in it is believed, because only Apple can check its signature: Apple is asked about its transaction id, and
/// no more. Source: AppleFacts 6.4.
package struct TransactionReceipt: Sendable, Hashable {
    /// Bytes of base64; real ones have 4 to 6 kB.
    package static let base64BytesMax = 64 << 10

    /// 1 to 32 digits.
    package let transactionId: String
    /// Everything of `purchase-info`, by Apple's keys.
    let fields: [String: String]
    /// `Sandbox`, or nil.
    package let environment: String?

    package var originalTransactionId: String? { fields["original-transaction-id"] }
    package var productId: String? { fields["product-id"] }
    package var bundleId: String? { fields["bid"] }

    /// - Parameter base64: standard base64; line breaks are passed over.
    /// - Throws: ``ReceiptFailure/noPurchase`` if it is such a receipt but names no transaction.
    package init(base64: String) throws(ReceiptFailure) {
        guard base64.utf8.count <= Self.base64BytesMax else { throw .tooLarge }
        let outer = try Self.propertyList(base64: base64)
        guard let info = outer["purchase-info"] else { throw .notReceipt }
        fields = try Self.propertyList(base64: info)
        environment = outer["environment"]
        guard let transactionId = fields["transaction-id"], !transactionId.isEmpty else { throw .noPurchase }
        // It becomes part of a path of Apple's.
        guard transactionId.utf8.count <= 32,
            transactionId.utf8.allSatisfy({ (UInt8(ascii: "0")...UInt8(ascii: "9")).contains($0) })
        else { throw .notReceipt }
        self.transactionId = transactionId
    }

    private static func propertyList(base64: String) throws(ReceiptFailure) -> [String: String] {
        var parser = PropertyListParser(bytes: try AppReceipt.octets(base64: Array(base64.utf8)))
        guard let list = parser.dictionary() else { throw .notReceipt }
        return list
    }
}

/// Reads `{ "key" = "value"; … }`, the flat part of NeXT's property lists that receipts are written in.
private struct PropertyListParser {
    let bytes: [UInt8]
    private var position = 0

    init(bytes: [UInt8]) { self.bytes = bytes }

    /// nil for anything else, and for a repeated key: readers would disagree about its value.
    mutating func dictionary() -> [String: String]? {
        var list: [String: String] = [:]
        guard takes("{") else { return nil }
        while !takes("}") {
            guard let key = string(), takes("="), let value = string(), takes(";"),
                list.updateValue(value, forKey: key) == nil
            else { return nil }
        }
        skipSpace()
        return position == bytes.count ? list : nil
    }

    private mutating func string() -> String? {
        let text = takes("\"") ? quoted() : word()
        return text.flatMap { $0.isStreamSafe ? $0 : nil }
    }

    private mutating func quoted() -> String? {
        var text: [UInt8] = []
        while position < bytes.count {
            let byte = bytes[position]
            position += 1
            switch byte {
            case UInt8(ascii: "\""): return String(validating: text, as: UTF8.self)
            case UInt8(ascii: "\\"):
                guard position < bytes.count else { return nil }
                text.append(bytes[position])
                position += 1
            default: text.append(byte)
            }
        }
        return nil
    }

    private mutating func word() -> String? {
        let start = position
        while position < bytes.count, Self.isWordByte(bytes[position]) { position += 1 }
        return start < position ? String(decoding: bytes[start..<position], as: UTF8.self) : nil
    }

    private static func isWordByte(_ byte: UInt8) -> Bool {
        switch byte {
        case 0x30...0x39, 0x41...0x5A, 0x61...0x7A, UInt8(ascii: "-"), UInt8(ascii: "_"), UInt8(ascii: "."): true
        default: false
        }
    }

    private mutating func skipSpace() {
        while position < bytes.count, bytes[position] == 0x20 || (0x09...0x0D).contains(bytes[position]) {
            position += 1
        }
    }

    private mutating func takes(_ character: Unicode.Scalar) -> Bool {
        skipSpace()
        guard position < bytes.count, bytes[position] == UInt8(ascii: character) else { return false }
        position += 1
        return true
    }
}
