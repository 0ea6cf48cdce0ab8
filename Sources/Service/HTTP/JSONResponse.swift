package import Encoding
package import HTTPTypes
package import Hummingbird
import NIOCore

extension Response {
    package init(json: JSONValue, status: HTTPResponse.Status = .ok) {
        self.init(
            status: status, headers: [.contentType: "application/json"],
            body: .init(byteBuffer: ByteBuffer(bytes: json.bytes)))
    }
}
