import Encoding
import Service
import Settings

/// The body of `POST /v1/receipts/batch`: `{appId?, userId?, installationToken?, receipts: [...]}`, each entry as a
/// body of `POST /v1/receipts`. Fields outside of the list apply to all entries (S3-61).
package struct SubmissionBatch: Sendable {
    package static let entriesMax = FieldBounds.batchEntriesMax

    /// The fields that apply to every entry without such a field of its own.
    private static let common = ["appId", "userId", "installationToken"]

    /// The entries in order; an invalid entry is a problem in its place.
    let entries: [Result<SubmissionRequest, Problem>]

    /// - Throws: 400 and 422 for a body that is no list of entries, or has too many.
    init(body: [UInt8], caller: Caller, apps: Set<String>, placeholders: PlaceholderUsers) throws(Problem) {
        let batch = try PostedBody.mending(body) { (text) throws(JSONError) in
            try JSONValue.Batch(parsing: text, entriesOf: "receipts")
        }
        guard case .object = batch.envelope else {
            throw .malformed(.notJSON, "the body must be a JSON object", field: nil)
        }
        try batch.envelope.refuseDuplicates(of: Self.common + ["receipts"])
        guard let list = batch.entries else { throw .wrongType("receipts", "an array") }
        guard (1...Self.entriesMax).contains(list.count) else {
            throw .incomplete(.batchSize, "must hold 1 to \(Self.entriesMax) entries", field: "receipts")
        }
        let common = Self.common.compactMap { name in
            batch.envelope[name].map { JSONValue.Member(name, $0) }
        }
        entries = list.map { entry in
            do throws(Problem) {
                let entry = try entry.mapError { Problem($0) }.get()
                guard case .object(let own) = entry else { throw .wrongType("receipts", "an array of objects") }
                let fields = try IntakeFields(
                    common.filter { entry[$0.key] == nil } + own, of: .receipt)
                return .success(
                    try SubmissionRequest(fields, caller: caller, apps: apps, placeholders: placeholders))
            } catch {
                return .failure(error)
            }
        }
    }
}

extension JSONValue {
    /// The members of an object; none for any other value.
    var members: [Member] {
        if case .object(let members) = self { members } else { [] }
    }
}
