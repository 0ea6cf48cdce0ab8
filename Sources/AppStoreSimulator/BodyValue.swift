import Foundation

/// Any JSON value: the body of a request whose every field has an error of its own, and so cannot be decoded at once.
///
/// Types are strict: `1` is no boolean and `true` no number.
enum BodyValue: Decodable, Equatable {
    case null
    case bool(Bool)
    case integer(Int64)
    /// A number that no Int64 holds.
    case number(Double)
    case string(String)
    case array([BodyValue])
    case object([String: BodyValue])

    init(from decoder: any Decoder) throws {
        let container = try decoder.singleValueContainer()
        if container.decodeNil() {
            self = .null
        } else if let value = try? container.decode(Bool.self) {
            self = .bool(value)
        } else if let value = try? container.decode(Int64.self) {
            self = .integer(value)
        } else if let value = try? container.decode(Double.self) {
            self = .number(value)
        } else if let value = try? container.decode(String.self) {
            self = .string(value)
        } else if let value = try? container.decode([BodyValue].self) {
            self = .array(value)
        } else {
            self = .object(try container.decode([String: BodyValue].self))
        }
    }

    /// The fields of a JSON object; a field that is null counts as absent.
    static func fields(_ body: [UInt8]) throws(AppleError) -> [String: BodyValue] {
        guard case .object(let fields) = try? JSONDecoder().decode(BodyValue.self, from: Data(body)) else {
            throw .malformed
        }
        return fields.filter { $0.value != .null }
    }

    var bool: Bool? { if case .bool(let value) = self { value } else { nil } }
    var integer: Int64? { if case .integer(let value) = self { value } else { nil } }
    var string: String? { if case .string(let value) = self { value } else { nil } }
    var object: [String: BodyValue]? { if case .object(let value) = self { value } else { nil } }
    var array: [BodyValue]? { if case .array(let value) = self { value } else { nil } }
}
