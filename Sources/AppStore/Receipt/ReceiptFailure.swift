/// Why a legacy receipt was not read, or not believed. Closed, as P20 of our requirements wants it: reading never ends
/// in a nil that says nothing.
///
/// Retryable where a responder gave no answer (``VerificationFailure``); otherwise the same bytes give the same answer
/// until roots or configuration change. The description names the case only, never the data.
package enum ReceiptFailure: Error, Hashable, Sendable, CustomStringConvertible {
    /// More than ``AppReceipt/bytesMax``.
    case tooLarge
    /// Not base64 of anything.
    case notBase64
    /// Not BER, or cut off, or followed by something.
    case notASN1
    /// Readable, but not a receipt's structure; or a receipt with a field of the wrong type.
    case notReceipt
    /// A receipt that lists no purchase: the app should refresh it.
    case noPurchase
    /// Readable, but not Apple's data about this app.
    case notBelieved(VerificationFailure.Reason)

    package var isRetryable: Bool { reason.isRetryable }

    /// The same in the list that `makegood inspect`, the database and the API share.
    package var reason: VerificationFailure.Reason {
        if case .notBelieved(let reason) = self { reason } else { .malformed }
    }

    package var description: String {
        switch self {
        case .tooLarge: "too_large"
        case .notBase64: "not_base64"
        case .notASN1: "not_asn1"
        case .notReceipt: "not_a_receipt"
        case .noPurchase: "no_purchase"
        case .notBelieved(let reason): reason.rawValue
        }
    }

    init(_ failure: BERReader.Failure) {
        switch failure {
        case .encoding: self = .notASN1
        case .structure: self = .notReceipt
        }
    }
}
