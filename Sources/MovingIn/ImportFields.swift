import Encoding
package import Foundation
package import Purchases
package import Settings

/// Why the importer refuses a line: the field at fault and the error. The value itself is not named.
package struct ImportFault: Error, Sendable, Equatable {
    package let field: String
    package let problem: String
}

/// The values of one line, read by the rules of their columns.
struct ImportFields {
    /// The App Store opened on 2008-07-10; nothing was bought before.
    static let firstPurchase = Date(timeIntervalSince1970: 1_215_648_000)
    /// Clocks differ by less than this; a purchase further in the future is a mistake.
    static let aheadMax: TimeInterval = 86_400
    private static let idBytesMax = 64
    private static let targetBytesMax = 1024

    /// As databases write the absence of a value into a text.
    private static let absent: Set<String> = ["null", "\\n"]

    let values: [ImportColumn: ImportRecord.Value]
    let app: ImportContext

    func required<Value>(
        _ column: ImportColumn, _ read: (ImportColumn) throws(ImportFault) -> Value?
    ) throws(ImportFault) -> Value {
        guard let value = try read(column) else { throw fault(column, "is missing") }
        return value
    }

    /// One of Apple's ids: digits only. A spreadsheet's 2.0E+15 is no id.
    func appleID(_ column: ImportColumn) throws(ImportFault) -> String? {
        guard let text = try plain(column, "an id of Apple's") else { return nil }
        guard text.utf8.allSatisfy({ (UInt8(ascii: "0")...UInt8(ascii: "9")).contains($0) }),
            text.utf8.count <= Self.idBytesMax
        else { throw fault(column, "must be an id of Apple's: at most \(Self.idBytesMax) digits") }
        return text
    }

    /// Any text, or a whole number as its digits.
    func text(_ column: ImportColumn, bytesMax: Int = FieldBounds.itemBytesMax) throws(ImportFault) -> String? {
        guard let text = try plain(column, "a text") else { return nil }
        guard text.utf8.count <= bytesMax else { throw fault(column, "is longer than \(bytesMax) bytes") }
        guard !text.utf8.contains(0) else { throw fault(column, "holds U+0000, which cannot be stored") }
        guard text.first?.isWhitespace == false, text.last?.isWhitespace == false else {
            throw fault(column, "has white space at an end")
        }
        return text
    }

    /// The user; of two columns that name one, the first that names a user of the app.
    func userID() throws(ImportFault) -> String {
        let columns = [ImportColumn.userId, .firstUserId]
        guard let column = columns.first(where: { names($0) == .user }) else {
            let placeholder = columns.first { names($0) == .placeholder }
            throw placeholder.map { fault($0, "is a placeholder that stands for no user") }
                ?? fault(.userId, "is missing")
        }
        return try required(column) { column throws(ImportFault) in
            try text(column, bytesMax: FieldBounds.userBytesMax)
        }
    }

    /// Whether the line names no user of the app, and no placeholder either, which is an error of the file.
    var isOfAnonymousUser: Bool {
        [ImportColumn.userId, .firstUserId].allSatisfy { names($0) == .nobody }
    }

    private enum Named { case user, placeholder, nobody }

    private func names(_ column: ImportColumn) -> Named {
        switch values[column] {
        case nil: .nobody
        case .text(let text), .number(let text):
            if app.placeholders.contains(text) {
                .placeholder
            } else {
                app.origin?.isAnonymous(text) == true ? .nobody : .user
            }
        case .other: .user
        }
    }

    func uuid(_ column: ImportColumn) throws(ImportFault) -> UUID? {
        guard let text = try plain(column, "a UUID") else { return nil }
        guard let uuid = UUID(uuidString: text) else { throw fault(column, "must be a UUID") }
        return uuid
    }

    func quantity() throws(ImportFault) -> Int? {
        guard let text = try plain(.quantity, "a whole number") else { return nil }
        guard let quantity = Int(text), (1...1000).contains(quantity) else {
            throw fault(.quantity, "must be a whole number from 1 to 1000")
        }
        return quantity
    }

    /// The price in the former system's shop; the line has both columns or neither.
    func price() throws(ImportFault) -> Catalogue.Price? {
        let milliunits = try plain(.priceMilliunits, "a whole number")
        let currency = try text(.currency)
        guard let milliunits else {
            guard currency == nil else { throw fault(.priceMilliunits, "is missing beside currency") }
            return nil
        }
        guard let value = Int(milliunits), (0...FieldBounds.priceMax).contains(value) else {
            throw fault(.priceMilliunits, "must be a whole number from 0 to \(FieldBounds.priceMax)")
        }
        guard let currency else { throw fault(.currency, "is missing beside priceMilliunits") }
        guard Catalogue.Price.isCurrency(currency) else {
            throw fault(.currency, "must be a currency's three capital letters")
        }
        return Catalogue.Price(milliunits: value, currency: currency)
    }

    /// A time: RFC 3339, or milliseconds since 1970 as Apple writes them. A time without a zone is one of the file's
    /// zone.
    func time(_ column: ImportColumn, aheadMax: TimeInterval = aheadMax) throws(ImportFault) -> Date? {
        guard let text = try plain(column, "a time") else { return nil }
        guard let date = try date(text, column) else {
            throw fault(column, "must be a time such as 2026-03-01T00:00:00Z, or milliseconds since 1970")
        }
        guard date >= Self.firstPurchase else {
            throw fault(column, "is before the App Store opened; numbers are milliseconds since 1970")
        }
        guard date.timeIntervalSince(app.now) <= aheadMax else { throw fault(column, "lies ahead of the clock") }
        return date
    }

    /// Nil: the text is no time.
    private func date(_ text: String, _ column: ImportColumn) throws(ImportFault) -> Date? {
        if let date = Date(rfc3339: text) ?? Int(text).map({ Date(timeIntervalSince1970: Double($0) / 1000) }) {
            return date
        }
        // As ISO 8601 and databases write a zone: +0000, +00, UTC.
        if let zoned = Self.withZone(text), let date = Date(rfc3339: zoned) { return date }
        guard let local = Date(rfc3339: text + "Z") else { return nil }
        guard let zone = app.timeZone else {
            throw fault(column, "has no time zone: write 2026-03-01T00:00:00Z, or give --time-zone UTC or another one")
        }
        // The zone's offset then, by the offset at about that time: the two differ by an hour on two days of the year.
        let about = local.addingTimeInterval(-Double(zone.secondsFromGMT(for: local)))
        return local.addingTimeInterval(-Double(zone.secondsFromGMT(for: about)))
    }

    /// The time with its zone as RFC 3339 writes it; nil: the text does not end with such a zone.
    private static func withZone(_ text: String) -> String? {
        if text.hasSuffix(" UTC") { return "\(text.dropLast(4))Z" }
        let zone = text.utf8.suffix(5)
        if let sign = zone.first, "+-".utf8.contains(sign), text.utf8.count > 19 {
            return "\(text.dropLast(2)):\(text.suffix(2))"
        }
        if let sign = text.utf8.suffix(3).first, "+-".utf8.contains(sign), text.utf8.count > 19 { return text + ":00" }
        return nil
    }

    func environment() throws(ImportFault) -> String {
        if let flag = try text(.isSandbox) {
            switch flag.lowercased() {
            case "true", "t", "1": return Transaction.sandbox
            case "false", "f", "0": return Transaction.production
            default: throw fault(.isSandbox, "must be true or false")
            }
        }
        guard let text = try plain(.environment, "an environment") else { return app.environment }
        guard [Transaction.production, Transaction.sandbox].contains(text) else {
            throw fault(.environment, "must be Production or Sandbox")
        }
        return text
    }

    /// The place in the game for the goods, as a JSON object.
    func target(of userID: String) throws(ImportFault) -> String {
        var members: [JSONValue.Member] = []
        for column in [ImportColumn.server, .role, .country] {
            guard let text = try text(column, bytesMax: Self.targetBytesMax) else { continue }
            members.append(.init(column.rawValue, .string(text)))
        }
        let target = JSONValue.object(members).canonical.text
        return app.keys?.protecting(target, of: userID, app: app.appID) ?? target
    }

    func fault(_ column: ImportColumn, _ problem: String) -> ImportFault {
        ImportFault(field: app.name(of: column), problem: problem)
    }

    /// The value as it was written. A number counts if it is whole.
    private func plain(_ column: ImportColumn, _ kind: String) throws(ImportFault) -> String? {
        switch values[column] {
        case nil: nil
        case .text(let text): app.origin != nil && Self.absent.contains(text.lowercased()) ? nil : text
        case .number(let text):
            if text.utf8.allSatisfy({ (UInt8(ascii: "0")...UInt8(ascii: "9")).contains($0) }) {
                text
            } else {
                throw fault(column, "must be \(kind), not this number")
            }
        case .other: throw fault(column, "must be \(kind)")
        }
    }
}

/// What all lines of a file share: the app, its catalogue and its user keys.
package struct ImportContext: Sendable {
    package let appID: String
    /// The environment of lines that name none.
    package let environment: String
    /// The products that the app sells.
    package let catalogue: Catalogue
    package let payBy: Duration
    /// The user keys, where the tables hold keys instead of ids.
    package let keys: UserKeys?
    package let now: Date
    /// The system whose columns the file has; nil: Makegood's own columns.
    package let origin: ImportOrigin?
    /// The zone of times that name none; nil: such times are refused.
    package let timeZone: TimeZone?
    /// Transactions that lines of the file tell the refund of (`ImportOrigin.refunds`).
    let refunded: Set<String>
    /// Whether the app takes sandbox purchases.
    let takesSandbox: Bool
    /// What names nobody where a user is named.
    let placeholders: PlaceholderUsers

    /// - Parameter catalogue: the catalogue in force, completed by the configuration's products.
    package init(
        _ app: AppConfiguration, catalogue: Catalogue, keys: UserKeys?, environment: String = Transaction.production,
        now: Date = .now, origin: ImportOrigin? = nil, timeZone: TimeZone? = nil, takesSandbox: Bool = false,
        refunded: Set<String> = [], placeholders: PlaceholderUsers = .standard
    ) {
        appID = app.id
        self.environment = environment
        self.catalogue = catalogue
        payBy = app.orders.payBy
        self.keys = keys
        self.now = now
        self.origin = origin
        self.timeZone = timeZone ?? origin?.timeZone
        self.refunded = refunded
        self.takesSandbox = takesSandbox
        self.placeholders = placeholders
    }

    /// The column's name in the file.
    func name(of column: ImportColumn) -> String {
        let names = origin?.names(of: column) ?? []
        return names.isEmpty ? column.rawValue : names.joined(separator: " or ")
    }

    func stored(_ userID: String) -> String { keys?.key(of: userID, app: appID) ?? userID }
}
