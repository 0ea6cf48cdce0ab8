/// What one user may do at the broker, as regular expressions over names
/// (https://www.rabbitmq.com/docs/access-control).
///
/// Everything is published through the default exchange, whose name in permissions is `amq.default`. A user that may
/// publish may publish to every queue of the vhost, so the vhost should be Makegood's own. Only `deploy` declares and
/// deletes. Apart from `deploy`, only workers and dispatchers may read, and only the queues of their own work.
package struct BrokerRights: Sendable, Equatable {
    package let user: String
    package let configure: String
    package let write: String
    package let read: String

    private static let nothing = "^$"
    private static let publish = #"^amq\.default$"#

    /// The users, named like the roles of the database, and `deploy`, which declares the queues. For a queue with dead
    /// letters the broker requires the right to read the queue, and to write where the dead letters go.
    ///
    /// - Parameter queues: a regular expression for what the names of the queues begin with.
    package static func all(queues: String, userPrefix: String) -> [BrokerRights] {
        let work = #"^\#(queues)\.verify\.(local|apple|bulk|unposted)$"#
        let deliver = #"^\#(queues)\.deliver$"#
        let both = #"^\#(queues)\.(verify\.(local|apple|bulk|unposted)|deliver)$"#
        let ours = #"^\#(queues)\."#
        func user(_ name: String, _ configure: String, _ write: String, _ read: String) -> BrokerRights {
            BrokerRights(user: "\(userPrefix)_\(name)", configure: configure, write: write, read: read)
        }
        return [
            user("ingest", nothing, publish, nothing),
            user("worker", nothing, publish, work),
            user("scheduler", nothing, publish, nothing),
            user("dispatcher", nothing, publish, deliver),
            user("all", nothing, publish, both),
            user("support", nothing, nothing, nothing),
            user("deploy", ours, publish, ours),
        ]
    }

    package static func all(queuePrefix: String, userPrefix: String) -> [BrokerRights] {
        let escaped = queuePrefix.map { $0.isLetter || $0.isNumber ? String($0) : "\\\($0)" }.joined()
        return all(queues: escaped, userPrefix: userPrefix)
    }

    /// The command for a shell that sets these rights.
    package func command(vhost: String) -> String {
        let words = [vhost, user, configure, write, read].map { word in
            word.wholeMatch(of: /[A-Za-z0-9_\/.-]+/) != nil
                ? word : "'\(word.split(separator: "'", omittingEmptySubsequences: false).joined(separator: #"'\''"#))'"
        }
        return "rabbitmqctl set_permissions -p \(words.joined(separator: " "))"
    }
}
