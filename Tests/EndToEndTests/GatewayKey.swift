import Crypto
import Foundation

/// The key of the app's gateway, and the tokens it signs for its users.
enum GatewayKey {
    private static let key = P256.Signing.PrivateKey()

    static var publicPEM: String { key.publicKey.pemRepresentation }

    /// - Parameter validFor: seconds from now; negative: expired.
    static func token(user: String, audience: String = "makegood", validFor seconds: Double = 600) throws -> String {
        let header = #"{"alg":"ES256","typ":"JWT"}"#
        let expiry = Int(Date.now.timeIntervalSince1970 + seconds)
        let claims = #"{"iss":"https://gateway.example.com","aud":"\#(audience)","sub":"\#(user)","exp":\#(expiry)}"#
        let input = encode(Data(header.utf8)) + "." + encode(Data(claims.utf8))
        return input + "." + encode(try key.signature(for: Data(input.utf8)).rawRepresentation)
    }

    private static func encode(_ data: Data) -> String {
        data.base64EncodedString().replacing("+", with: "-").replacing("/", with: "_").replacing("=", with: "")
    }
}
