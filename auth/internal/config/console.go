package config

import (
	"net"
	"net/url"
	"strconv"

	"gatehouse/shared/httpx"
	"gatehouse/shared/settings"
)

// consoleConfig has the settings of the admin console.
type consoleConfig struct {
	// Address and port of the admin console, such as 127.0.0.1:8085; port 0: any free port. Unset: no console.
	Addr string `env:"AUTH_CONSOLE_ADDR" restart:"true"`
	// URL of the admin console in browsers, without a path; unset: `http://` and the address. Required, and https, if
	// the address is not loopback.
	ExternalURL string `env:"AUTH_CONSOLE_EXTERNAL_URL" restart:"true"`
}

// check refuses a console that other machines could reach without TLS.
func (c *consoleConfig) check(r *settings.Report) {
	if c.Addr == "" {
		if c.ExternalURL != "" {
			r.Warn("AUTH_CONSOLE_EXTERNAL_URL has no effect without AUTH_CONSOLE_ADDR")
		}
		return
	}
	host, port, err := net.SplitHostPort(c.Addr)
	if _, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil {
		r.Wrong("AUTH_CONSOLE_ADDR", "is an address with a port, such as 127.0.0.1:8085")
		return
	}
	u, err := url.Parse(c.ExternalURL)
	switch {
	case err != nil || c.ExternalURL != "" && (u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" ||
		u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "" || u.User != nil):
		r.Wrong("AUTH_CONSOLE_EXTERNAL_URL", "is a URL without a path, such as https://console.example.org")
	case !httpx.IsLoopbackHost(host) && u.Scheme != "https":
		r.Clash("AUTH_CONSOLE_ADDR=%s is not a loopback address: AUTH_CONSOLE_EXTERNAL_URL must say under which https "+
			"URL browsers find the console", c.Addr)
	}
}
