import Encoding
package import Foundation

/// What a legacy app receipt itself says: a snapshot of the day it was made, without later refunds and renewals.
///
/// Every attribute that AppleFacts 6.3 names; unknown ones are passed over. Absent is nil, also where the receipt has
/// an empty string instead.
package struct AppReceipt: Sendable, Hashable {
    /// Bytes of a receipt; base64 of it has a third more. Years of renewals take about 2 MiB.
    package static let bytesMax = 8 << 20
    /// Attributes of a receipt, one for each purchase and some twenty more; 8 MiB of real purchases have a quarter.
    static let attributesMax = 110_000

    /// As it stands: `Production`, `ProductionSandbox`, `ProductionVPP`, `ProductionVPPSandbox`, `Xcode`.
    package var receiptType: String?
    /// 0 in the sandbox.
    package var appAppleId: Int64?
    package var bundleId: String?
    package var applicationVersion: String?
    /// With ``sha1Hash``: what ties the receipt to a device. Not checked here: a server does not know the device.
    package var opaqueValue: [UInt8]?
    package var sha1Hash: [UInt8]?
    package var transactionDate: Date?
    package var ageRating: String?
    /// The time at which the certificates are judged.
    package var creationDate: Date?
    /// Of the app itself.
    package var originalPurchaseDate: Date?
    package var originalApplicationVersion: String?
    /// Of the receipt; volume purchases only.
    package var expirationDate: Date?
    /// In the receipt's order, which means nothing.
    package var inApp: [ReceiptEntry] = []

    /// Reads a receipt without verifying it: for its transaction ids, about which Apple is then asked, and for people.
    ///
    /// - Parameter base64: standard base64; line breaks are passed over.
    package init(unverified base64: String) throws(ReceiptFailure) {
        try self.init(unverified: try SignedReceipt(try Self.octets(base64: Array(base64.utf8))).content)
    }

    /// The transaction ids of the purchases that a receipt lists as made since `date`, at most `max`. Nothing is
    /// verified and nothing else is kept, because strangers send receipts too. Values that cannot be ids are left out.
    /// A restored purchase counts as made at its original date. If the receipt becomes unreadable, the ids before that
    /// place are returned.
    ///
    /// - Parameter base64: standard base64; line breaks are passed over.
    package static func transactionIds(unverified base64: String, since date: Date, max: Int) -> [String] {
        guard let octets = try? octets(base64: Array(base64.utf8)), let signed = try? SignedReceipt(octets) else {
            return []
        }
        return transactionIds(unverified: signed.content, since: date, max: max)
    }

    /// - Parameter content: the octets that the container signs.
    static func transactionIds(unverified content: [UInt8], since date: Date, max: Int) -> [String] {
        var ids: [String] = []
        var count = 0
        do throws(BERReader.Failure) {
            try ReceiptAttribute.forEach(in: try attributes(content)) { (attribute) throws(BERReader.Failure) in
                count += 1
                guard count <= attributesMax, ids.count < max else { throw .structure }
                guard attribute.type == purchase else { return }
                let entry = try ReceiptEntry(attribute.elements())
                let boughtAt =
                    entry.isAutoRenewable ? entry.purchaseDate : entry.originalPurchaseDate ?? entry.purchaseDate
                let id = entry.transactionId
                guard let boughtAt, boughtAt >= date, id.utf8.count <= 64,
                    id.utf8.allSatisfy({ (0x21...0x7E).contains($0) })
                else { return }
                ids.append(id)
            }
        } catch {}
        return ids
    }

    /// Every purchase once, by transaction id, in an order that does not depend on Apple's.
    package var entries: [ReceiptEntry] { ReceiptEntry.once(inApp) }

    /// The environment of the receipt type. nil: an unknown type, which no app is served in.
    package var environment: StoreEnvironment? { StoreEnvironment(receiptType: receiptType) }

    /// The transaction ids of the purchases, as verifyReceipt would list them in `in_app`.
    ///
    /// - Throws: ``ReceiptFailure/noPurchase`` where there is none.
    package func transactionIds() throws(ReceiptFailure) -> [String] {
        guard !inApp.isEmpty else { throw .noPurchase }
        return inApp.map(\.transactionId)
    }
}

// MARK: - Reading

extension AppReceipt {
    /// Reads everything of a receipt without verifying it.
    ///
    /// - Parameter content: the octets that the container signs.
    package init(unverified content: [UInt8]) throws(ReceiptFailure) {
        try self.init(headOf: content)
        try readPurchases(content)
    }

    /// Reads the fields by which the signature is judged, and no purchase yet: a stranger's receipt costs one walk over
    /// its bytes.
    ///
    /// - Parameter content: the octets that the container signs.
    init(headOf content: [UInt8]) throws(ReceiptFailure) {
        do throws(BERReader.Failure) {
            var count = 0
            try ReceiptAttribute.forEach(in: try Self.attributes(content)) { (attribute) throws(BERReader.Failure) in
                count += 1
                guard count <= Self.attributesMax else { throw .structure }
                if attribute.type != Self.purchase { try take(attribute) }
            }
        } catch {
            throw ReceiptFailure(error)
        }
    }

    /// Reads the purchases, from the same content as the rest; to be called once.
    mutating func readPurchases(_ content: [UInt8]) throws(ReceiptFailure) {
        do throws(BERReader.Failure) {
            try ReceiptAttribute.forEach(in: try Self.attributes(content)) { (attribute) throws(BERReader.Failure) in
                if attribute.type == Self.purchase { inApp.append(try ReceiptEntry(attribute.elements())) }
            }
        } catch {
            throw ReceiptFailure(error)
        }
    }

    private static let purchase: Int64 = 17

    private static func attributes(_ content: [UInt8]) throws(BERReader.Failure) -> BERReader.Element {
        var reader = BERReader(content)
        guard let set = try reader.next(), reader.isAtEnd else { throw .encoding }
        guard set.isOctetString else { return set }
        reader = try set.octetElements()  // Xcode wraps twice (AppleFacts 6.1)
        return try reader.next(BERReader.Element.set)
    }

    private mutating func take(_ attribute: ReceiptAttribute) throws(BERReader.Failure) {
        switch attribute.type {
        case 0: receiptType = try attribute.text()
        case 1: appAppleId = try? attribute.int64()
        case 2: bundleId = try attribute.text()
        case 3: applicationVersion = try attribute.text()
        case 4: opaqueValue = try attribute.octets()
        case 5: sha1Hash = try attribute.octets()
        case 8: transactionDate = try? attribute.date()
        case 10: ageRating = try? attribute.text()
        case 12: creationDate = try attribute.date()
        case 18: originalPurchaseDate = try? attribute.date()
        case 19: originalApplicationVersion = try attribute.text()
        case 21: expirationDate = try attribute.date()
        default: break
        }
    }

    /// The bytes of a receipt in base64.
    package static func octets(base64: [UInt8]) throws(ReceiptFailure) -> [UInt8] {
        guard base64.count <= bytesMax / 3 * 4 else { throw .tooLarge }
        let isBreak = { (byte: UInt8) in byte == 0x0A || byte == 0x0D }
        let text = base64.contains(where: isBreak) ? base64.filter { !isBreak($0) } : base64
        guard !text.isEmpty, let octets = Base64.decodeStandard(text[...]) else { throw .notBase64 }
        return octets
    }
}

extension ReceiptEntry {
    /// The attributes 1701 to 1721 of one purchase; those that Apple never documented may be unreadable.
    ///
    /// A purchase without its two ids is an error of the whole receipt: dropping it would lose a purchase.
    fileprivate init(_ elements: BERReader) throws(BERReader.Failure) {
        self.init(transactionId: "", productId: "")
        var elements = elements
        let set = try elements.next(BERReader.Element.set)
        try ReceiptAttribute.forEach(in: set) { (attribute) throws(BERReader.Failure) in try take(attribute) }
        guard !transactionId.isEmpty, !productId.isEmpty else { throw .structure }
    }

    private mutating func take(_ attribute: ReceiptAttribute) throws(BERReader.Failure) {
        switch attribute.type {
        case 1701: quantity = try attribute.int64().map { Int($0) }
        case 1702: productId = try attribute.text() ?? ""
        case 1703: transactionId = try attribute.text() ?? ""
        case 1704: purchaseDate = try attribute.date()
        case 1705: originalTransactionId = try attribute.text()
        case 1706: originalPurchaseDate = try attribute.date()
        case 1707: productType = (try? attribute.int64()).flatMap { Int(exactly: $0) }
        case 1708: expiresDate = try attribute.date()
        // 0 stands for none.
        case 1711: webOrderLineItemId = try attribute.int64().flatMap { $0 == 0 ? nil : String($0) }
        case 1712: cancellationDate = try attribute.date()
        case 1713: isTrialPeriod = (try? attribute.int64()).map { $0 != 0 }
        case 1719: isInIntroOfferPeriod = try attribute.int64().map { $0 != 0 }
        case 1721: promotionalOfferId = try? attribute.text()
        default: break
        }
    }
}

/// `SEQUENCE { type INTEGER, version INTEGER, value OCTET STRING }`; most values hold one more element.
private struct ReceiptAttribute {
    let type: Int64
    private let value: BERReader.Element

    static func forEach(
        in set: BERReader.Element, _ body: (ReceiptAttribute) throws(BERReader.Failure) -> Void
    ) throws(BERReader.Failure) {
        guard set.tag == BERReader.Element.set else { throw .structure }
        var elements = set.elements
        while let element = try elements.next() {
            guard element.tag == BERReader.Element.sequence else { throw .structure }
            var parts = element.elements
            let type = try parts.next(BERReader.Element.integer).int64()
            _ = try parts.next(BERReader.Element.integer)
            guard let value = try parts.next(), value.isOctetString else { throw .structure }
            try body(ReceiptAttribute(type: type, value: value))
        }
    }

    func octets() throws(BERReader.Failure) -> [UInt8] { try value.octets() }

    func elements() throws(BERReader.Failure) -> BERReader { try value.octetElements() }

    func int64() throws(BERReader.Failure) -> Int64? { try inner()?.int64() }

    func text() throws(BERReader.Failure) -> String? {
        guard let text = try inner()?.text(), !text.isEmpty else { return nil }
        return text
    }

    func date() throws(BERReader.Failure) -> Date? {
        guard let text = try text() else { return nil }
        guard let date = ReceiptDate.parse(text) else { throw .structure }
        return date
    }

    private func inner() throws(BERReader.Failure) -> BERReader.Element? {
        var elements = try value.octetElements()
        let inner = try elements.next()
        guard elements.isAtEnd else { throw .structure }
        return inner
    }
}
