// Command fake-device-plugin offers devices that do not exist to the kubelet of a test node. A
// container that gets some finds their names in the environment variable FAIRGATE_FAKE_DEVICES.
//
// Usage: fake-device-plugin RESOURCE COUNT, for example fake-device-plugin nvidia.com/gpu 8
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	variable = "FAIRGATE_FAKE_DEVICES"
	retry    = 200 * time.Millisecond
)

// plugin answers the kubelet. All its devices are always healthy.
type plugin struct {
	api.UnimplementedDevicePluginServer
	devices []*api.Device
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	if err := stream.Send(&api.ListAndWatchResponse{Devices: p.devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	answer := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		names := strings.Join(container.DevicesIds, ",")
		fmt.Printf("allocated %s\n", names)
		answer.ContainerResponses = append(answer.ContainerResponses,
			&api.ContainerAllocateResponse{Envs: map[string]string{variable: names}})
	}
	return answer, nil
}

// serve offers the devices until ctx ends or the kubelet, when it restarts, removes the socket.
func serve(ctx context.Context, resource string, devices []*api.Device) error {
	socket := filepath.Join(api.DevicePluginPath, "fairgate-"+strings.ReplaceAll(resource, "/", "-")+".sock")
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, &plugin{devices: devices})
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	if err := register(ctx, resource, filepath.Base(socket)); err != nil {
		return err
	}
	fmt.Printf("registered %d %s\n", len(devices), resource)
	for ctx.Err() == nil {
		if _, err := os.Stat(socket); err != nil {
			return nil
		}
		pause(ctx)
	}
	return nil
}

func register(ctx context.Context, resource, endpoint string) error {
	connection, err := grpc.NewClient("unix://"+api.KubeletSocket,
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	_, err = api.NewRegistrationClient(connection).Register(ctx, &api.RegisterRequest{
		Version: api.Version, Endpoint: endpoint, ResourceName: resource,
		Options: &api.DevicePluginOptions{},
	})
	return err
}

func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(retry):
	}
}

func main() {
	count := 0
	if len(os.Args) == 3 {
		count, _ = strconv.Atoi(os.Args[2])
	}
	if count < 1 {
		fmt.Fprintln(os.Stderr, "usage: fake-device-plugin RESOURCE COUNT, for example fake-device-plugin nvidia.com/gpu 8")
		os.Exit(2)
	}
	devices := make([]*api.Device, count)
	for number := range devices {
		devices[number] = &api.Device{ID: fmt.Sprintf("fake-%d", number), Health: api.Healthy}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	for said := ""; ctx.Err() == nil; pause(ctx) {
		if err := serve(ctx, os.Args[1], devices); err != nil && err.Error() != said {
			said = err.Error()
			fmt.Fprintln(os.Stderr, said)
		}
	}
}
