import Encoding
import Foundation

extension Inspection {
    /// ``json`` for people: the verdict, why, and each field in plain words, dates as dates and prices as money.
    package var text: String {
        var lines = ["\(kind.words): \(verdict)"]
        if let note { lines.append("Note: \(note)") }
        if let payload {
            lines.append("")
            FieldList(indent: 2).write(payload, to: &lines)
        }
        for (field, value) in nested.sorted(by: { $0.key < $1.key }) {
            guard let object = value.object else { continue }
            lines.append("")
            lines.append("Inside, \(FieldList.words(field)):")
            FieldList(indent: 2).write(object, to: &lines)
        }
        return lines.joined(separator: "\n")
    }

    private var verdict: String {
        guard let reason else {
            if givenRoots.isEmpty { return "valid. This is Apple's word about this app." }
            return "valid, but not Apple's word: it was signed below a root that was given ("
                + "\(givenRoots.map(FieldList.visible).joined(separator: " or ")))."
        }
        return "not valid (\(reason.rawValue)). \(reason.words)"
    }
}

extension Inspection.Kind {
    fileprivate var words: String {
        switch self {
        case .transaction: "Signed transaction"
        case .renewalInfo: "Signed renewal info"
        case .notification: "Notification"
        case .appTransaction: "App transaction"
        case .receipt: "App receipt"
        case .transactionReceipt: "Transaction receipt"
        case .unknown: "Unknown data"
        }
    }
}

extension VerificationFailure.Reason {
    fileprivate var words: String {
        switch self {
        case .malformed: "It cannot be read as what it should be: damaged, cut off, or something else."
        case .algorithm: "It is signed in another way than the App Store signs this kind of data."
        case .chainLength: "It does not bring exactly three certificates: leaf, intermediate and root."
        case .certificate: "One of its certificates cannot be read or may not do its part."
        case .untrustedRoot: "Its certificates do not lead to Apple's root or to one that was given."
        case .missingOID: "Its certificates are not made for signing App Store data."
        case .expired: "One of its certificates was not valid at the date of the data."
        case .signature: "The signature does not fit the content: it was changed, or signed by somebody else."
        case .wrongApp: "It is about another app."
        case .wrongEnvironment: "It comes from an environment that this app is not served in."
        case .unsigned: "It comes from Xcode or StoreKitTest: Apple never signed it."
        case .revoked: "One of its certificates was revoked: who holds its key may not sign any more."
        case .statusUnknown: "Nobody says whether its certificates were revoked; try again later."
        }
    }
}

/// Fields as lines `label  value`, nested ones indented below their label.
private struct FieldList {
    let indent: Int
    /// The currency of the enclosing object, for prices in an object that names none.
    var currency: String?

    /// Values begin here, counted from the label.
    private static let labelWidth = 34

    func write(_ object: [String: JSON], to lines: inout [String]) {
        let currency = object["currency"]?.string ?? currency
        for (key, value) in object.sorted(by: { Self.rank($0) < Self.rank($1) }) {
            write(value, labelled: Self.words(key), key: key, currency: currency, to: &lines)
        }
    }

    private func write(
        _ value: JSON, labelled label: String, key: String, currency: String?, to lines: inout [String]
    ) {
        let space = String(repeating: " ", count: indent)
        switch value {
        case .object(let object):
            lines.append("\(space)\(label):")
            FieldList(indent: indent + 2, currency: currency).write(object, to: &lines)
        case .array(let elements) where elements.isEmpty:
            lines.append(space + Self.padded(label) + "none")
        case .array(let elements):
            for (index, element) in elements.enumerated() {
                write(
                    element, labelled: "\(label) \(index + 1) of \(elements.count)", key: key, currency: currency,
                    to: &lines)
            }
        default:
            lines.append(space + Self.padded(label) + Self.text(of: value, key: key, currency: currency))
        }
    }

    private static func padded(_ label: String) -> String {
        label + String(repeating: " ", count: max(2, labelWidth - label.count))
    }

    /// The order of the fields: first those that a reader looks for first, then the rest by name, last those with lines
    /// of their own.
    private static func rank(_ field: (key: String, value: JSON)) -> (Int, Int, String) {
        let isLong = field.value.object != nil || field.value.array != nil
        return (isLong ? 1 : 0, first.firstIndex(of: field.key) ?? first.count, field.key)
    }

    private static let first = [
        "notificationType", "subtype", "transactionId", "originalTransactionId", "productId", "type", "productType",
        "quantity", "bundleId", "environment", "receiptType", "appAccountToken", "purchaseDate",
        "originalPurchaseDate", "expiresDate", "revocationDate", "cancellationDate", "price", "currency",
    ]

    private static let known: [String: String] = [
        "bundleId": "app (bundle id)", "appAppleId": "app (Apple's number)", "productId": "product",
        "transactionId": "transaction", "originalTransactionId": "first transaction of the chain",
        "purchaseDate": "bought", "originalPurchaseDate": "first bought", "expiresDate": "runs until",
        "revocationDate": "taken back", "cancellationDate": "taken back", "signedDate": "signed",
        "creationDate": "made", "receiptCreationDate": "made", "appAccountToken": "account token",
        "inAppOwnershipType": "ownership", "inApp": "purchase", "autoRenewStatus": "renews by itself",
        "sha1Hash": "hash of the device", "opaqueValue": "salt of the device hash",
    ]

    /// The words for a key: `webOrderLineItemId` → `web order line item id`. Some keys have a better name.
    static func words(_ key: String) -> String {
        if let words = known[key] { return words }
        var words = ""
        var isAfterLowercase = false
        for scalar in visible(key.replacing("-", with: " ")).unicodeScalars {
            if scalar.properties.isUppercase, isAfterLowercase { words.append(" ") }
            words.append(contentsOf: scalar.properties.lowercaseMapping)
            isAfterLowercase = scalar.properties.isLowercase
        }
        return words
    }

    private static func text(of value: JSON, key: String, currency: String?) -> String {
        switch value {
        case .null: return "none"
        case .bool(let flag): return flag ? "yes" : "no"
        case .string(let text): return visible(text)
        case .integer(let number): return self.text(of: Double(number), written: "\(number)", key, currency)
        case .number(let number): return self.text(of: number, written: "\(number)", key, currency)
        case .array, .object: return ""
        }
    }

    private static func text(of number: Double, written: String, _ key: String, _ currency: String?) -> String {
        if key.hasSuffix("Date"), timeRange.contains(number / 1000) {
            return Date(timeIntervalSince1970: number / 1000).formatted(.iso8601)
        }
        if key == "price" || key.hasSuffix("Price"), let currency {
            return "\(number / 1000) \(visible(currency))"
        }
        switch (key, number) {
        case ("revocationPercentage", _): return "\(number / 1000) %"
        case ("autoRenewStatus", 0), ("commitmentAutoRenewStatus", 0): return "no"
        case ("autoRenewStatus", 1), ("commitmentAutoRenewStatus", 1): return "yes"
        case ("priceIncreaseStatus", 0): return "the customer has not answered"
        case ("priceIncreaseStatus", 1): return "consented, or no consent needed"
        case ("offerType", 1): return "introductory"
        case ("offerType", 2): return "promotional"
        case ("offerType", 3): return "offer code"
        case ("offerType", 4): return "win-back"
        case ("productType", 0): return "non-consumable"
        case ("productType", 1): return "consumable"
        case ("productType", 2): return "non-renewing subscription"
        case ("productType", 3): return "auto-renewable subscription"
        default: return written
        }
    }

    /// Years 1 to 9999.
    private static let timeRange = -62_135_596_800.0...253_402_300_799.0

    /// The text with control characters replaced: a terminal would obey them, and the data may be a stranger's.
    static func visible(_ text: String) -> String {
        String(
            String.UnicodeScalarView(
                text.unicodeScalars.map { scalar in
                    switch scalar.properties.generalCategory {
                    case .control, .format, .lineSeparator, .paragraphSeparator: "\u{FFFD}"
                    default: scalar
                    }
                }))
    }
}
