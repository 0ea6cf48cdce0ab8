package import Encoding
package import Foundation

/// A field of Apple's without which its object cannot be judged is missing, or has a value that nobody can read.
///
/// Not retryable: the same bytes give the same error.
package struct FieldMismatch: Error {
    package init() {}
}

/// The name of a field of Apple's that this program knows.
///
/// Only a literal of this program is such a name, so no text from outside becomes a label of a metric.
package struct AppleField: ExpressibleByStringLiteral, Sendable {
    let name: String

    package init(stringLiteral name: String) { self.name = name }
}

/// Reads the known fields of one JSON object that Apple wrote.
///
/// A getter returns nil if the field is absent or null, and if its value cannot be read: that field is unknown, and its
/// object is judged without it. If Apple wrote another JSON type than the documented one, the getter reads the value
/// where it has one meaning only: a number as text, text as a number, 0 or 1 as a flag, a date as text, an object as
/// JSON text, one element as a list. No number is rounded into an id. Both cases count in
/// `makegood_apple_field_mismatches_total`, by field (F15).
///
/// The documented type is looked at first, so a field as documented costs one look-up.
package struct AppleFields: Sendable {
    /// How Apple writes numbers, flags and dates (AppleFacts 0).
    enum Spelling {
        /// As JSON's own types; dates as UNIX milliseconds.
        case json
        /// As text: verifyReceipt.
        case text
    }

    private let members: [String: JSON]
    private let spelling: Spelling
    /// False for data that nobody has verified yet: strangers raise no alert.
    private let counts: Bool

    package init(_ members: [String: JSON]) { self.init(members, spelling: .json, counts: true) }

    init(_ members: [String: JSON], spelling: Spelling = .json, counts: Bool) {
        self.members = members
        self.spelling = spelling
        self.counts = counts
    }

    private func inside(_ members: [String: JSON]) -> AppleFields {
        AppleFields(members, spelling: spelling, counts: counts)
    }

    private func note(_ field: AppleField) { if counts { FieldMismatches.shared.count(field) } }

    /// Whether Apple says nothing in this field: absent, null, or text without a character.
    func isSilent(_ field: AppleField) -> Bool {
        switch members[field.name] {
        case nil, .null?: true
        case .string(let text)?: text.isEmpty
        default: false
        }
    }

    /// Whether Apple wrote a list, whatever is in it.
    func isList(_ field: AppleField) -> Bool { members[field.name]?.array != nil }

    // MARK: Text

    /// Nil also for text without a character: two purchases would share it as an id.
    package func string(_ field: AppleField) -> String? {
        switch members[field.name] {
        case nil, .null?: return nil
        case .string(let text)?: return text.isEmpty ? nil : text
        case let value?:
            note(field)
            return value.digits
        }
    }

    /// A text without which the object means nothing.
    func required(_ field: AppleField) throws(FieldMismatch) -> String {
        guard let value = string(field) else { throw FieldMismatch() }
        return value
    }

    func environment(_ field: AppleField) -> StoreEnvironment? {
        string(field).map { StoreEnvironment(rawValue: $0) }
    }

    /// Nil also for text that is no UUID: a token that nobody can read must not cost the customer the purchase.
    func uuid(_ field: AppleField) -> UUID? { string(field).flatMap { UUID(uuidString: $0) } }

    // MARK: Numbers and flags

    package func int64(_ field: AppleField) -> Int64? {
        if spelling == .json, case .integer(let number)? = members[field.name] { return number }
        return read(field, \.wholeNumber)
    }

    package func int(_ field: AppleField) -> Int? { int64(field).flatMap { Int(exactly: $0) } }

    /// A number that stands for a flag: 0 or 1, and what Apple may add.
    func flagNumber(_ field: AppleField) -> Int? {
        if case .bool(let flag)? = members[field.name] {
            note(field)
            return flag ? 1 : 0
        }
        return int(field)
    }

    /// A flag for which Apple documents true and false as well as 1 and 0.
    func flag(_ field: AppleField) -> Bool? {
        if case .integer? = members[field.name] { return members[field.name]?.flag }
        return bool(field)
    }

    package func bool(_ field: AppleField) -> Bool? {
        if spelling == .json, case .bool(let flag)? = members[field.name] { return flag }
        return read(field, \.flag)
    }

    // MARK: Dates

    /// Years 0 to 9999.
    package func date(_ field: AppleField) -> Date? {
        if spelling == .json, let date = members[field.name]?.milliseconds { return date }
        return read(field, \.date)
    }

    /// A date whose presence alone says that Apple took the purchase back.
    ///
    /// - Throws: for a value that cannot be read: to pass over it could give a refunded purchase.
    func dateOfEnd(_ fields: AppleField...) throws(FieldMismatch) -> Date? {
        var isSaid = false
        for field in fields where !isSilent(field) {
            if let date = date(field) { return date }
            isSaid = true
        }
        if isSaid { throw FieldMismatch() }
        return nil
    }

    /// A date without bounds: it is only compared with certificates' dates, and a strange date counts as expired.
    func anyDate(_ field: AppleField) -> Date? {
        switch members[field.name] {
        case .integer(let milliseconds)?: Date(timeIntervalSince1970: Double(milliseconds) / 1000)
        case .number(let milliseconds)?: Date(timeIntervalSince1970: milliseconds / 1000)
        default: date(field)
        }
    }

    // MARK: Objects and lists

    func object(_ field: AppleField) -> AppleFields? {
        switch members[field.name] {
        case nil, .null?: return nil
        case .object(let members)?: return inside(members)
        case let value?:
            note(field)
            return value.inText?.object.map(inside)
        }
    }

    /// An object as compact JSON, for data that is passed on unread.
    func objectText(_ field: AppleField) -> String? {
        object(field).map { String(decoding: JSON.object($0.members).bytes, as: UTF8.self) }
    }

    /// The objects of a list. An object in the list's place is its one element; an object that holds nothing but
    /// objects is the list by number or key.
    ///
    /// - Parameter mayBeOne: whether Apple documents one object in the list's place.
    /// - Throws: for a value that is no list, and for an element that is no object: to drop it could lose a purchase.
    func list(_ field: AppleField, mayBeOne: Bool = false) throws(FieldMismatch) -> [AppleFields]? {
        let elements: [JSON]
        switch members[field.name] {
        case .array(let list)?: elements = list
        case let value?:
            guard !isSilent(field) else { return nil }
            let isOne = value.object != nil
            if !(isOne && mayBeOne) { note(field) }
            switch isOne ? value : value.inText {
            case .null?: return nil
            case .array(let list)?: elements = list
            case .object(let members)?: elements = Self.elements(of: members)
            default: throw FieldMismatch()
            }
        case nil: return nil
        }
        var read: [AppleFields] = []
        read.reserveCapacity(elements.count)
        for element in elements where element != .null {
            if let members = element.object {
                read.append(inside(members))
            } else if let members = element.inText?.object {
                note(field)
                read.append(inside(members))
            } else {
                note(field)
                throw FieldMismatch()
            }
        }
        return read
    }

    private static func elements(of members: [String: JSON]) -> [JSON] {
        guard members.values.allSatisfy({ $0.object != nil }) else { return [.object(members)] }
        return members.sorted { $0.key < $1.key }.map(\.value)
    }

    /// As ``list(_:mayBeOne:)``, each element read as what it stands for.
    func objects<Element>(
        _ field: AppleField, _ read: ([String: JSON]) throws(FieldMismatch) -> Element
    ) throws(FieldMismatch) -> [Element]? {
        try list(field)?.map { (element) throws(FieldMismatch) in try read(element.members) }
    }

    /// The texts of a list. Text in the list's place is its one element.
    ///
    /// - Throws: as ``list(_:mayBeOne:)``.
    func strings(_ field: AppleField) throws(FieldMismatch) -> [String]? {
        let elements: [JSON]
        switch members[field.name] {
        case .array(let list)?: elements = list
        case let value?:
            guard !isSilent(field) else { return nil }
            note(field)
            elements = value.inText?.array ?? [value]
        case nil: return nil
        }
        return try elements.filter { $0 != .null }.map { (element) throws(FieldMismatch) in
            if let text = element.string { return text }
            note(field)
            guard let digits = element.digits else { throw FieldMismatch() }
            return digits
        }
    }

    // MARK: Other types

    /// Reads a value that is not a plain one of JSON's type, or of which Apple documents a text.
    private func read<Value>(_ field: AppleField, _ meaning: (JSON) -> Value?) -> Value? {
        guard let value = members[field.name], value != .null else { return nil }
        let isDocumented =
            switch (value, spelling) {
            case (.string(let text), .text):
                // Apple writes an absent value as an empty text.
                text.isEmpty || meaning(value) != nil
            // A whole number may be written with a fraction of 0.
            case (.number, .json): meaning(value) != nil
            default: false
            }
        if !isDocumented { note(field) }
        return meaning(value)
    }
}

// MARK: - What a value means

extension JSON {
    /// A whole number as the digits that Apple wrote. Nil for a number that was rounded when it was read.
    fileprivate var digits: String? {
        if case .integer(let number) = self { String(number) } else { nil }
    }

    fileprivate var wholeNumber: Int64? {
        switch self {
        case .integer(let number): number
        case .number(let number): Int64(exactly: number)
        case .string(let text): Int64(text)
        default: nil
        }
    }

    fileprivate var flag: Bool? {
        switch self {
        case .bool(let flag): return flag
        case .integer, .number:
            guard let number = wholeNumber, (0...1).contains(number) else { return nil }
            return number == 1
        case .string(let text):
            switch text.lowercased() {
            case "true", "1": return true
            case "false", "0": return false
            default: return nil
            }
        default: return nil
        }
    }

    /// UNIX milliseconds, with a fraction in Xcode's data (AppleFacts 0).
    fileprivate var milliseconds: Date? {
        switch self {
        case .integer(let milliseconds): KnownTime.date(Double(milliseconds) / 1000)
        case .number(let milliseconds): KnownTime.date(milliseconds / 1000)
        default: nil
        }
    }

    fileprivate var date: Date? {
        guard case .string(let text) = self else { return milliseconds }
        return ReceiptDate.parse(text) ?? ReceiptDate.parse(inAnswer: text)
            ?? Double(text).flatMap { KnownTime.date($0 / 1000) }
    }

    /// The value that a JSON text holds; nil for any other text.
    fileprivate var inText: JSON? {
        guard case .string(let text) = self else { return nil }
        return try? JSON(parsing: Array(text.utf8))
    }
}

/// The times that every calendar and database behind this program can hold.
enum KnownTime {
    /// Seconds since 1970 of the years 0 to 9999.
    private static let years = -62_167_219_200.0..<253_402_300_800.0

    static func date(_ seconds: Double) -> Date? {
        years.contains(seconds) ? Date(timeIntervalSince1970: seconds) : nil
    }
}
