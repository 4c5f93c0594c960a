package telemetry

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

const otlpPrefix = "OTEL_EXPORTER_OTLP_"

// CheckEnvironment returns the errors in the standard variables of an OTLP exporter, one line each, with the variable's
// name and what would be right. It never shows the values of headers. signal is TRACES or METRICS, protocol is http or
// grpc, and get returns the value of a variable ("" if it is unset). The SDK itself would ignore an error and export to
// its default endpoint.
func CheckEnvironment(signal, protocol string, get func(name string) string) (mistakes []string) {
	for _, infix := range []string{"", signal + "_"} {
		c := checker{prefix: otlpPrefix + infix, get: get}
		c.endpoint(protocol)
		c.certificates()
		c.others()
		mistakes = append(mistakes, c.mistakes...)
	}
	return mistakes
}

type checker struct {
	prefix   string
	get      func(string) string
	mistakes []string
}

func (c *checker) value(name string) string { return strings.TrimSpace(c.get(c.prefix + name)) }

func (c *checker) wrong(name, format string, args ...any) {
	c.mistakes = append(c.mistakes, c.prefix+name+": "+fmt.Sprintf(format, args...))
}

// endpoint checks the endpoint's URL. Over gRPC, every target that the library can dial is valid.
func (c *checker) endpoint(protocol string) {
	v := c.value("ENDPOINT")
	if v == "" {
		return
	}
	u, err := url.Parse(v)
	web := err == nil && (u.Scheme == "http" || u.Scheme == "https")
	if err != nil || web && u.Host == "" || !web && protocol == "http" {
		c.wrong("ENDPOINT", "not a URL such as http://collector:%s",
			map[string]string{"http": "4318", "grpc": "4317"}[protocol])
	}
}

func (c *checker) certificates() {
	if file := c.value("CERTIFICATE"); file != "" {
		if b, err := os.ReadFile(file); err != nil {
			c.wrong("CERTIFICATE", "%v", err)
		} else if !x509.NewCertPool().AppendCertsFromPEM(b) {
			c.wrong("CERTIFICATE", "%s holds no PEM certificate", file)
		}
	}
	switch cert, key := c.value("CLIENT_CERTIFICATE"), c.value("CLIENT_KEY"); {
	case cert == "" && key == "":
	case cert == "":
		c.wrong("CLIENT_KEY", "needs %sCLIENT_CERTIFICATE", c.prefix)
	case key == "":
		c.wrong("CLIENT_CERTIFICATE", "needs %sCLIENT_KEY", c.prefix)
	default:
		if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
			c.wrong("CLIENT_CERTIFICATE", "%v", err)
		}
	}
}

func (c *checker) others() {
	if v := c.value("TIMEOUT"); v != "" {
		if n, err := strconv.Atoi(v); err != nil || n <= 0 {
			c.wrong("TIMEOUT", "%q is not a number of milliseconds, such as 10000", v)
		}
	}
	if v := c.value("COMPRESSION"); v != "" && v != "gzip" && v != "none" {
		c.wrong("COMPRESSION", "%q is neither gzip nor none", v)
	}
	if v := c.value("INSECURE"); v != "" && !strings.EqualFold(v, "true") && !strings.EqualFold(v, "false") {
		c.wrong("INSECURE", "%q is neither true nor false", v)
	}
	if _, err := ParseHeaders(c.value("HEADERS")); err != nil {
		c.wrong("HEADERS", "%v", err)
	}
}

// ParseHeaders parses OTEL_EXPORTER_OTLP_HEADERS: name=value,name=value with percent-encoded values. Its errors do not
// show values.
func ParseHeaders(text string) (map[string]string, error) {
	headers := map[string]string{}
	for i, item := range strings.Split(text, ",") {
		if strings.TrimSpace(item) == "" {
			continue
		}
		name, value, ok := strings.Cut(item, "=")
		name = strings.TrimSpace(name)
		if !ok {
			return nil, fmt.Errorf("item %d is not name=value", i+1)
		}
		if !httpguts.ValidHeaderFieldName(name) {
			return nil, fmt.Errorf("item %d: its name is no header's name", i+1)
		}
		value, err := url.PathUnescape(value)
		if err != nil {
			return nil, fmt.Errorf("item %d: a %% in its value begins no percent-encoded byte", i+1)
		}
		headers[name] = strings.TrimSpace(value)
	}
	return headers, nil
}
