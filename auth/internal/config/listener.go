package config

import "gatehouse/shared/settings"

// Listener has the settings that a health check needs. They are all of the API, so that no other setting and no secret
// has to be set.
type Listener struct {
	// Address to listen on; empty: all.
	Host string `env:"AUTH_API_HOST" restart:"true"`
	// Port; 0 takes a free one.
	Port int `env:"PORT" envDefault:"8081" min:"0" max:"65535" restart:"true"`
	// The same; it wins when both are set.
	APIPort int `env:"AUTH_API_PORT" min:"0" max:"65535" restart:"true"`
}

// settle chooses between the two names of the port.
func (l *Listener) settle(r *settings.Report) {
	if r.IsSet("AUTH_API_PORT") {
		l.Port = l.APIPort
	}
}

// LoadListener reads the settings of the listener as Load does.
func LoadListener(environ []string, file string) (l Listener, err error) {
	all, err := withFile(environ, file)
	if err != nil {
		return l, err
	}
	r := settings.Load(&l, all, settingNames)
	l.settle(r)
	return l, r.Err()
}
