/* Hosts and addresses as texts of a configuration. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct conf_listen;

/* The decimal port at the end of an address; 0 if the text is not a port. */
uint16_t conf_port_of(const char *s);
/* Checks a host without brackets.  Returns NULL, or the reason why the text is not a host. */
const char *conf_host_check(const char *host);
/* Reads host:port or [IPv6]:port into l->host and l->port.  Returns NULL, or the reason for the refusal. */
const char *conf_address_parse(const char *text, struct conf_listen *l);
/* The same, or unix:/PATH, whose path becomes l->host. */
const char *conf_listen_parse(const char *text, struct conf_listen *l);
/* Only programs of this host reach the address: 127.0.0.0/8, ::1, localhost. */
bool conf_address_is_loopback(const struct conf_listen *l);
/* Whether two addresses are one: paths differ by the case of a letter, hosts do not. */
bool conf_listen_same(const struct conf_listen *a, const struct conf_listen *b);
