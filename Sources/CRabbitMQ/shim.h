#pragma once
#include <amqp.h>
#include <amqp_framing.h>
#include <amqp_ssl_socket.h>
#include <amqp_tcp_socket.h>

/// amqp_login_with_properties is variadic, which Swift cannot call: the one wrapper.
static inline amqp_rpc_reply_t makegood_amqp_login_plain(
    amqp_connection_state_t state, char const *vhost, int channel_max, int frame_max, int heartbeat_seconds,
    const amqp_table_t *client_properties, char const *user, char const *password) {
    return amqp_login_with_properties(
        state, vhost, channel_max, frame_max, heartbeat_seconds, client_properties, AMQP_SASL_METHOD_PLAIN, user, password);
}
