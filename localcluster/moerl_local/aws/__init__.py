"""AWS on one machine: EKS node groups, Auto Scaling and EC2 as strict as the real ones, over the wire.

One HTTP server stands for all services; product code knows only its URL. How a request runs through it:

    server (route by signature scope) -> faults -> wire.parse -> wire.check -> service -> wire.render
                                                                                  |
                        world (what exists) <- simulation (what happens as the clock moves) -> joiner (nodes)

A service is eks, autoscaling, ec2 with launch_templates, or sts. S3, SQS and EventBridge are moto's, behind the
same port.
"""
