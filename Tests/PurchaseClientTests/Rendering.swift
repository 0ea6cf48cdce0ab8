import PurchaseClient

/// What the journal's events, actions and records are in JSON, for the vectors that other languages run.
///
/// An enum's case is its name, or an object of one member whose value has the payload by name. A struct is an object
/// without the members that are not set.
indirect enum Rendered: Equatable {
    case text(String)
    case number(Int64)
    case flag(Bool)
    case list([Rendered])
    case object([(String, Rendered)])
    case nothing

    static func == (one: Self, other: Self) -> Bool { one.json() == other.json() }

    init(_ value: Any) {
        switch value {
        case let text as String: self = .text(text)
        case let flag as Bool: self = .flag(flag)
        case let number as any BinaryInteger: self = .number(Int64(number))
        case let key as RecordKey: self = .text(key.text)
        case let user as UserID: self = .text(user.text)
        case let token as AccountToken: self = .text(token.text)
        case let phase as PurchaseRecord.Phase: self = .text(phase.rawValue)
        case let kind as ClientReport.Kind: self = .text(kind.rawValue)
        case let refusal as JournalNotice.Refusal: self = .text(refusal.rawValue)
        default: self = Self.reflected(value)
        }
    }

    private static func reflected(_ value: Any) -> Rendered {
        let mirror = Mirror(reflecting: value)
        switch mirror.displayStyle {
        case .optional: return mirror.children.first.map { Rendered($0.value) } ?? .nothing
        case .collection: return .list(mirror.children.map { Rendered($0.value) })
        case .dictionary:
            let pairs = mirror.children.map { child -> (String, Rendered) in
                let pair = Array(Mirror(reflecting: child.value).children)
                return ("\(pair[0].value)", Rendered(pair[1].value))
            }
            return .object(pairs.sorted { $0.0 < $1.0 })
        case .enum:
            guard let child = mirror.children.first, let name = child.label else { return .text("\(value)") }
            return .object([(name, payload(child.value))])
        default:
            return .object(
                mirror.children.compactMap { child in
                    let rendered = Rendered(child.value)
                    return isDefault(rendered) ? nil : (child.label ?? "", rendered)
                })
        }
    }

    private static func isDefault(_ rendered: Rendered) -> Bool {
        switch rendered {
        case .nothing, .flag(false): true
        case .object(let members): members.isEmpty
        default: false
        }
    }

    /// A payload's values, by their labels or by what they are.
    private static func payload(_ value: Any) -> Rendered {
        let mirror = Mirror(reflecting: value)
        guard mirror.displayStyle == .tuple else { return isNamed(value) ? Rendered(value) : .object([member(value)]) }
        return .object(
            mirror.children.compactMap { child in
                let rendered = Rendered(child.value)
                if isDefault(rendered) { return nil }
                guard let label = child.label, !label.hasPrefix(".") else { return member(child.value) }
                return (label, rendered)
            })
    }

    /// Whether the name of the case says what the value is.
    private static func isNamed(_ value: Any) -> Bool {
        switch value {
        case is RecordKey, is PurchasePost, is ClientReport, is PurchaseRecord, is UserID, is StoreTransaction,
            is AccountToken, is String, is JournalNotice, is [RecordKey: RecordAnswer]:
            true
        default: false
        }
    }

    private static func member(_ value: Any) -> (String, Rendered) {
        let name =
            switch value {
            case is RecordKey: "key"
            case is PurchaseDetails: "details"
            case is PaymentAnswer, is PostAnswer, is RecordAnswer, is RecordAnswer?: "answer"
            case is JournalNotice.Refusal: "reason"
            default: "value"
            }
        return (name, Rendered(value))
    }

    /// JSON on one line.
    func json() -> String {
        switch self {
        case .text(let text): Self.quoted(text)
        case .number(let number): "\(number)"
        case .flag(let flag): "\(flag)"
        case .list(let values): "[" + values.map { $0.json() }.joined(separator: ", ") + "]"
        case .object(let members):
            "{" + members.map { "\(Self.quoted($0.0)): \($0.1.json())" }.joined(separator: ", ") + "}"
        case .nothing: "null"
        }
    }

    static func quoted(_ text: String) -> String {
        var out = "\""
        for scalar in text.unicodeScalars {
            switch scalar {
            case "\"": out += "\\\""
            case "\\": out += "\\\\"
            case _ where scalar.value < 0x20:
                out += "\\u00" + (scalar.value < 16 ? "0" : "") + String(scalar.value, radix: 16)
            default: out.unicodeScalars.append(scalar)
            }
        }
        return out + "\""
    }
}
