import BlockingIO
import CRabbitMQ
import Glibc

/// Begins a connection: the socket, TLS, and the login. Its errors say whether a person has to mend something.
struct BrokerHandshake {
    private let configuration: BrokerConfiguration
    private let node: BrokerConfiguration.Node

    init(_ configuration: BrokerConfiguration, _ node: BrokerConfiguration.Node) {
        self.configuration = configuration
        self.node = node
    }

    /// Connects the socket of a new state, with TLS if the URL says so. Blocks up to the connect time-out and for the
    /// name lookup.
    func connect(_ state: amqp_connection_state_t) throws(RabbitMQError) -> Int32 {
        // amqp_tcp_socket.h, amqp_ssl_socket.h: the socket object belongs to the connection state.
        let socket: OpaquePointer?
        if let tls = configuration.tls {
            unsafe socket = amqp_ssl_socket_new(state)
            guard let socket = unsafe socket else { throw .untrusted }
            try unsafe Self.configure(socket, tls)
        } else {
            unsafe socket = amqp_tcp_socket_new(state)
        }
        guard let socket = unsafe socket else { throw .unreachable }
        var limit = configuration.connectTimeout.timeval
        errno = 0
        // amqp.h, amqp_socket_open_noblock: reads host and time-out during the call only; a negative status is an
        // error.
        let status = unsafe amqp_socket_open_noblock(socket, node.host, Int32(node.port), &limit)
        let cause = errno
        guard status == AMQP_STATUS_OK.rawValue else {
            switch status {
            case AMQP_STATUS_SSL_HOSTNAME_VERIFY_FAILED.rawValue, AMQP_STATUS_SSL_PEER_VERIFY_FAILED.rawValue:
                throw .untrusted
            // socket(2) failed: the library's status does not say why.
            case AMQP_STATUS_SOCKET_ERROR.rawValue where [EMFILE, ENFILE].contains(cause): throw .outOfDescriptors
            // Also a TLS handshake that broke off: a broker that goes down looks the same.
            default: throw .unreachable
            }
        }
        // amqp.h, amqp_get_sockfd: the descriptor of the state's socket.
        return unsafe amqp_get_sockfd(state)
    }

    /// Sets every TLS option explicitly: by default 0.11 knows no authorities and allows TLS 1.0 (amqp_openssl.c).
    private static func configure(_ socket: OpaquePointer, _ tls: BrokerConfiguration.TLS) throws(RabbitMQError) {
        // amqp_ssl_socket.h: each call copies or loads what it needs; the strings live during the call.
        var status = unsafe amqp_ssl_socket_set_ssl_versions(socket, AMQP_TLSv1_2, AMQP_TLSvLATEST)
        unsafe amqp_ssl_socket_set_verify_peer(socket, tls.verifiesPeer ? 1 : 0)
        unsafe amqp_ssl_socket_set_verify_hostname(socket, tls.verifiesPeer ? 1 : 0)
        if status == AMQP_STATUS_OK.rawValue, let file = tls.authoritiesFile {
            status = unsafe amqp_ssl_socket_set_cacert(socket, file)
        }
        if status == AMQP_STATUS_OK.rawValue, let certificate = tls.certificateFile, let key = tls.keyFile {
            status = unsafe amqp_ssl_socket_set_key(socket, certificate, key)
        }
        guard status == AMQP_STATUS_OK.rawValue else { throw .untrusted }
    }

    /// The AMQP login on a connected socket. Blocks up to the handshake time-out.
    func login(_ state: amqp_connection_state_t, _ cutoff: Cutoff) throws(RabbitMQError) {
        var handshakeLimit = configuration.handshakeTimeout.timeval
        var rpcLimit = configuration.rpcTimeout.timeval
        // amqp.h, amqp_set_handshake_timeout and amqp_set_rpc_timeout: the value is copied.
        _ = unsafe amqp_set_handshake_timeout(state, &handshakeLimit)
        _ = unsafe amqp_set_rpc_timeout(state, &rpcLimit)
        let reply = try unsafe withArena { arena throws(RabbitMQError) in
            // Without these capabilities the broker sends neither connection.blocked nor basic.cancel.
            let capabilities = unsafe arena.table([
                ("connection.blocked", .flag(true)), ("consumer_cancel_notify", .flag(true)),
                ("basic.nack", .flag(true)), ("publisher_confirms", .flag(true)),
            ])
            var properties = unsafe arena.table([
                ("capabilities", .table(capabilities)), ("connection_name", .text(configuration.connectionName)),
            ])
            let limit = configuration.handshakeTimeout + configuration.stallDeadline
            // amqp.h, amqp_login_with_properties: properties are cloned, strings are read during the call.
            return unsafe cutoff.limited(to: limit) {
                unsafe makegood_amqp_login_plain(
                    state, configuration.vhost, 0, Int32(clamping: configuration.frameMaxBytes),
                    Int32(clamping: max(1, configuration.heartbeat.components.seconds)), &properties,
                    configuration.user, configuration.password)
            }
        }
        switch unsafe reply.reply_type {
        case AMQP_RESPONSE_NORMAL: return
        case AMQP_RESPONSE_SERVER_EXCEPTION:
            // 403 wrong user or password, 530 no such vhost or not ours (AMQP 0-9-1, reply codes).
            switch unsafe BrokerConnection.closeCode(reply.reply) {
            case 403, 530: throw .accessRefused
            default: throw .unreachable
            }
        default:
            switch unsafe reply.library_error {
            case AMQP_STATUS_BAD_AMQP_DATA.rawValue, AMQP_STATUS_INCOMPATIBLE_AMQP_VERSION.rawValue,
                AMQP_STATUS_WRONG_METHOD.rawValue, AMQP_STATUS_UNKNOWN_METHOD.rawValue,
                AMQP_STATUS_UNKNOWN_CLASS.rawValue:
                throw .protocolViolation
            case AMQP_STATUS_BROKER_UNSUPPORTED_SASL_METHOD.rawValue: throw .accessRefused
            default: throw .unreachable
            }
        }
    }
}

extension Duration {
    var timeval: timeval {
        Glibc.timeval(
            tv_sec: Int(components.seconds), tv_usec: Int(components.attoseconds / 1_000_000_000_000))
    }
}
