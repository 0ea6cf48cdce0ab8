import Foundation

/// A JSON body of the control API: its fields are known, and any other is an error.
///
/// A typing error in a fault script must not become a test that passes for the wrong reason.
package protocol ControlBody: Decodable {
    associatedtype CodingKeys: CodingKey, CaseIterable
    /// The fields that may have a fraction; all other numbers are whole.
    static var fractions: Set<String> { get }
}

extension ControlBody {
    package static var fractions: Set<String> { [] }

    /// Decodes a body; no bytes at all count as `{}`.
    static func decode(_ bytes: [UInt8]) throws(ControlError) -> Self {
        let data = Data(bytes.isEmpty ? Array("{}".utf8) : bytes)
        do {
            let decoder = JSONDecoder()
            let known = Set(CodingKeys.allCases.map(\.stringValue))
            let present = try decoder.decode([String: Anything].self, from: data).keys
            if let unknown = present.sorted().first(where: { !known.contains($0) }) {
                throw ControlError(
                    field: unknown, "is not a field of this request; known: \(known.sorted().joined(separator: ", "))")
            }
            return try decoder.decode(Self.self, from: data)
        } catch let error as ControlError {
            throw error
        } catch DecodingError.keyNotFound(let key, let context) {
            throw ControlError(field: path(context.codingPath + [key]), "is missing")
        } catch DecodingError.typeMismatch(let type, let context) where !context.codingPath.isEmpty {
            throw ControlError(field: path(context.codingPath), "must be of type \(type)")
        } catch DecodingError.valueNotFound(_, let context) where !context.codingPath.isEmpty {
            throw ControlError(field: path(context.codingPath), "must not be null")
        } catch DecodingError.dataCorrupted(let context) where !context.codingPath.isEmpty {
            throw ControlError(field: path(context.codingPath), context.debugDescription)
        } catch {
            // For a number that does not fit, Foundation reports only "not valid JSON", without a path.
            let values = (try? JSONDecoder().decode([String: Anything].self, from: data)) ?? [:]
            let misfit = values.keys.sorted().first { values[$0]?.isMisfit == true && !fractions.contains($0) }
            guard let misfit else { throw ControlError("the body must be a JSON object") }
            throw ControlError(field: misfit, "must be a whole number")
        }
    }

    private static func path(_ keys: [any CodingKey]) -> String {
        keys.map { $0.intValue.map(String.init) ?? $0.stringValue }.joined(separator: ".")
    }
}

/// Any JSON value. Keeps only whether the value is a number that no integer can hold.
private struct Anything: Decodable {
    let isMisfit: Bool

    init(from decoder: any Decoder) {
        let container = try? decoder.singleValueContainer()
        isMisfit = (try? container?.decode(Double.self)) != nil && (try? container?.decode(Int64.self)) == nil
    }
}
