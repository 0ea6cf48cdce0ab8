import Crypto
import Foundation
import SwiftASN1

/// What a legacy receipt of this simulator says: whose it is and which purchases it shows, in that order.
struct ReceiptContents: Codable, Equatable {
    let bundleId: String
    let environment: StoreEnvironment
    /// UNIX milliseconds.
    let createdAt: Int64
    let transactionIds: [String]
    /// True: the answer of verifyReceipt has no `in_app` at all (an empty list is another thing).
    let omitsInApp: Bool
}

/// Turns receipt contents into opaque base64 and back.
///
/// Not PKCS#7: base64 of `SEQUENCE { INTEGER 1, OCTET STRING sealed }`, sealed with AES-GCM under a key of the state
/// directory, so it begins with `MII` like a real one, cannot be read, and a changed bit is found. The
/// contents are padded to at least 1 KiB. Prices, refunds and dates are looked up in the ledger, so a receipt made
/// before a refund shows it.
struct ReceiptFormat: Sendable {
    /// Why a receipt is refused.
    enum Refusal: Error {
        /// Not base64, or not our structure: status 21002.
        case malformed
        /// Our structure, but not sealed by this store: status 21003.
        case notAuthentic
    }

    private static let paddedSize = 1024

    private let key: SymmetricKey

    init(key: Data) {
        self.key = SymmetricKey(data: key)
    }

    func seal(_ contents: ReceiptContents) throws(SimulatorError) -> String {
        do {
            var data = try JSONEncoder().encode(contents)
            if data.count < Self.paddedSize {
                // JSON may be followed by any white space.
                data.append(Data(repeating: UInt8(ascii: " "), count: Self.paddedSize - data.count))
            }
            let sealed = try AES.GCM.seal(data, using: key).combined ?? Data()
            var serializer = DER.Serializer()
            try serializer.appendConstructedNode(identifier: .sequence) { node in
                try node.serialize(1)
                try node.serialize(ASN1OctetString(contentBytes: Array(sealed)[...]))
            }
            return Data(serializer.serializedBytes).base64EncodedString()
        } catch {
            throw .authority("cannot seal a receipt")
        }
    }

    func open(_ receipt: String) throws(Refusal) -> ReceiptContents {
        guard let der = Data(base64Encoded: receipt), let sealed = try? Self.sealedPart(Array(der)) else {
            throw .malformed
        }
        guard
            let box = try? AES.GCM.SealedBox(combined: sealed),
            let data = try? AES.GCM.open(box, using: key),
            let contents = try? JSONDecoder().decode(ReceiptContents.self, from: data)
        else { throw .notAuthentic }
        return contents
    }

    private static func sealedPart(_ der: [UInt8]) throws -> Data {
        try DER.sequence(DER.parse(der), identifier: .sequence) { nodes in
            _ = try Int(derEncoded: &nodes)
            return Data(try ASN1OctetString(derEncoded: &nodes).bytes)
        }
    }
}
