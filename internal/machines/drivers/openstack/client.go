// Package openstack makes machines in an OpenStack cloud: Nova's servers, of Glance's images, on Neutron's networks. The
// cloud's address and credentials come from clouds.yaml, as OpenStack's own clients read it.
//
// A server is identified by its metadata, pulley-owner and pulley-fleet, and by its name. Nova's names are not unique and its requests
// have no idempotency key: the driver looks for a server before and after each order. After a lost answer it looks for a minute
// before it orders again. A server that appears later, or after a restart of the program, is a second one of that name. Both are
// listed, and a plan shows the duplicate.
//
// It must never change or delete a server without the fleet's mark, never follow a redirect or a link of an answer, and never
// take a lost answer for a server that was not made. Sources: Compute, Image and Networking API references.
package openstack

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	api "github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/config"
	"github.com/gophercloud/gophercloud/v2/openstack/config/clouds"

	"pulley/environments"
	"pulley/internal/machines"
)

// defaultDeadline bounds one request. A page of a thousand servers takes Nova many seconds.
const defaultDeadline = 2 * time.Minute

// Config is the configuration of a Driver.
type Config struct {
	Provider environments.Provider
	Mark     machines.Mark

	CloudsFile string        // clouds.yaml; "" is where OpenStack's clients find it
	Deadline   time.Duration // of one request; 0 is two minutes
	Late       time.Duration // how long a server may appear after the answer to its order was lost; 0 is a minute
}

// Driver is a machines.Provider. Its errors name the cause: callers name the call.
type Driver struct {
	config  Config
	compute *gophercloud.ServiceClient
	images  *gophercloud.ServiceClient
	network *gophercloud.ServiceClient

	looking chan struct{} // has room for one check that the list is complete

	mu         sync.Mutex
	found      map[string]finding // ids by name
	orders     map[string]order   // by name: those of unknown outcome
	oldNova    bool               // it does not know partialSince
	completeAt time.Time          // time of the last request whose answer was complete
}

// New logs in to the cloud. Wrong credentials, and a clouds.yaml that is missing or has no such cloud, are ErrRefused.
func New(ctx context.Context, c Config) (*Driver, error) {
	if c.Mark.Owner == "" || c.Mark.Fleet == "" {
		return nil, errors.New("cannot open the cloud: the mark needs an owner and a fleet")
	}
	if c.Deadline == 0 {
		c.Deadline = defaultDeadline
	}
	if c.Late == 0 {
		c.Late = defaultLate
	}
	auth, endpoint, tls, err := clouds.Parse(parseOptions(c)...)
	if err != nil {
		return nil, fmt.Errorf("cannot read clouds.yaml: %w: %w\nset the cloud (`cloud:` of the provider, or OS_CLOUD) and the path of "+
			"the file (OS_CLIENT_CONFIG_FILE)", machines.ErrRefused, err)
	}
	auth.AllowReauth = true // a watch outlives a token
	client, err := config.NewProviderClient(ctx, auth, config.WithTLSConfig(tls), config.WithHTTPClient(http.Client{
		Timeout: c.Deadline,
		// A redirect would send the token and the body, with the password or the userdata, to another address.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}))
	if err != nil {
		return nil, fmt.Errorf("cannot log in to the cloud at %s: %w", auth.IdentityEndpoint, cause(err))
	}
	d := &Driver{config: c, looking: make(chan struct{}, 1), found: map[string]finding{}, orders: map[string]order{}}
	for _, service := range []struct {
		name   string
		client **gophercloud.ServiceClient
		open   func(*gophercloud.ProviderClient, gophercloud.EndpointOpts) (*gophercloud.ServiceClient, error)
	}{
		{"compute", &d.compute, api.NewComputeV2},
		{"image", &d.images, api.NewImageV2},
		{"network", &d.network, api.NewNetworkV2},
	} {
		if *service.client, err = service.open(client, endpoint); err != nil {
			return nil, fmt.Errorf("cannot find the cloud's %s service in region %q: %w: %w",
				service.name, endpoint.Region, machines.ErrRefused, err)
		}
	}
	return d, nil
}

func parseOptions(c Config) []clouds.ParseOption {
	var options []clouds.ParseOption
	if c.Provider.Cloud != "" {
		options = append(options, clouds.WithCloudName(c.Provider.Cloud))
	}
	if c.Provider.Region != "" {
		options = append(options, clouds.WithRegion(c.Provider.Region))
	}
	if c.CloudsFile != "" {
		options = append(options, clouds.WithLocations(c.CloudsFile))
	}
	return options
}
