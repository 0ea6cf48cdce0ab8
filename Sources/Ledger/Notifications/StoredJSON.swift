import Foundation
package import Postgres
package import Purchases

/// The JSON that is stored of a chain: Apple's renewal, and the told state. Dates are seconds since 1970, exact to the
/// microsecond, as a column of the type `timestamptz` would be: a date that was read is equal to the same date from a
/// column.
package enum StoredJSON {
    static func encode(_ value: some Encodable) -> String {
        let encoder = JSONEncoder()
        encoder.outputFormatting = .sortedKeys
        encoder.dateEncodingStrategy = .custom { date, encoder in
            let microseconds = (date.timeIntervalSinceReferenceDate * 1_000_000).rounded() + microsecondsTo2001
            var container = encoder.singleValueContainer()
            try container.encode(microseconds / 1_000_000)
        }
        // Values of our own types, whose numbers are finite.
        return (try? encoder.encode(value)).map { String(decoding: $0, as: UTF8.self) } ?? "null"
    }

    static func decode<Value: Decodable>(_ text: String) -> Value? {
        let decoder = JSONDecoder()
        decoder.dateDecodingStrategy = .custom { decoder in
            let seconds = try decoder.singleValueContainer().decode(Double.self)
            let microseconds = (seconds * 1_000_000).rounded() - microsecondsTo2001
            return Date(timeIntervalSinceReferenceDate: microseconds / 1_000_000)
        }
        return try? decoder.decode(Value.self, from: Data(text.utf8))
    }

    /// From 1970 to the reference date of `Date`.
    private static let microsecondsTo2001 = 978_307_200_000_000.0
}

extension RowReader {
    /// Apple's facts of the next renewal of a chain (`chains.renewal`); nil where none are known.
    package func renewal(_ column: Int) throws(PostgresError) -> Renewal? {
        guard let text = try optionalJSON(column) else { return nil }
        guard let renewal: Renewal = StoredJSON.decode(text) else { throw undecodable(column) }
        return renewal
    }
}
