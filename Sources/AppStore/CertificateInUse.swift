import Encoding
package import Foundation
import X509

/// A certificate that an app relies on now, and when it ends.
package struct CertificateInUse: Hashable, Sendable {
    package enum Kind: String, CaseIterable, Sendable {
        /// Given in the configuration: the operator has to watch its end.
        case configuredRoot = "configured_root"
        /// Apple's, seen in verified data: Apple replaces it in time, and its successor comes with the data.
        case leaf
        case intermediate
        /// The root of a chain: one that is given in the configuration, or Apple's, which is built in.
        case root
    }

    package let kind: Kind
    /// Its name as the certificate says it.
    package let subject: String
    /// In hexadecimal.
    package let serialNumber: String
    package let end: Date

    init(_ kind: Kind, _ certificate: Certificate) {
        self.kind = kind
        subject = "\(certificate.subject)"
        serialNumber = certificate.serialNumber.bytes.hexadecimal
        end = certificate.notValidAfter
    }
}
